// Files of prompts, read in the browser: CSV, JSON Lines, plain lines; and CSV that a spreadsheet can open safely.
// Pure: text in, rows out. Knows nothing of the page.

export const MAX_ROWS = 50_000;

export function rowsOf(name, text) {
  // The columns' names and the rows; raises an Error that says what is wrong.
  const body = text.replace(/^\ufeff/, "");
  const kind = name.toLowerCase().split(".").pop();
  const found = ["jsonl", "ndjson"].includes(kind) ? ofJson(body) : ["csv", "tsv"].includes(kind) ? ofCsv(body) : ofLines(body);
  if (!found.rows.length) throw new Error("There is no prompt in this file.");
  if (found.rows.length > MAX_ROWS) throw new Error(`This file has ${found.rows.length} rows, and ${MAX_ROWS} are taken at most; divide it.`);
  return found;
}

const filled = (text) => text.split(/\r?\n/).filter((line) => line.trim());
const ofLines = (text) => ({ columns: ["prompt"], rows: filled(text).map((line) => ({ prompt: line })) });

function ofJson(text) {
  const rows = filled(text).map((line, place) => {
    try {
      const value = JSON.parse(line);
      if (typeof value === "string") return { prompt: value };
      if (value && typeof value === "object" && !Array.isArray(value)) return value;
    } catch {
      // Said below.
    }
    throw new Error(`Line ${place + 1} is neither a JSON object nor a text.`);
  });
  const columns = [...new Set(rows.flatMap((row) => Object.keys(row).filter((name) => ["string", "number"].includes(typeof row[name]))))];
  return { columns, rows: rows.map((row) => Object.fromEntries(columns.map((name) => [name, String(row[name] ?? "")]))) };
}

function ofCsv(text) {
  const first = text.split("\n", 1)[0];
  const comma = [",", ";", "\t"].sort((one, other) => first.split(other).length - first.split(one).length)[0];
  const [columns, ...cells] = records(text, comma).filter((row) => row.some((cell) => cell.trim()));
  if (!columns) return { columns: [], rows: [] };
  return { columns, rows: cells.map((row) => Object.fromEntries(columns.map((name, place) => [name, row[place] ?? ""]))) };
}

function records(text, comma) {
  // As RFC 4180 has them: a quoted cell may hold commas, line feeds, and quotes that are doubled.
  const rows = [[]];
  let [cell, quoted] = ["", false];
  for (let at = 0; at < text.length; at += 1) {
    const sign = text[at];
    if (quoted && sign === '"' && text[at + 1] === '"') cell += text[(at += 1)];
    else if (sign === '"' && (quoted || !cell)) quoted = !quoted;
    else if (!quoted && sign === comma) [cell] = ["", rows.at(-1).push(cell)];
    else if (!quoted && sign === "\n") [cell] = ["", rows.at(-1).push(cell.replace(/\r$/, "")), rows.push([])];
    else cell += sign;
  }
  rows.at(-1).push(cell.replace(/\r$/, ""));
  return rows;
}

export function guessed(columns, names) {
  return columns.find((column) => names.includes(column.trim().toLowerCase())) ?? "";
}

export function csvOf(heads, rows) {
  return [heads, ...rows].map((row) => row.map(safe).join(",")).join("\r\n") + "\r\n";
}

function safe(value) {
  // A spreadsheet would run a cell that begins like a formula.
  const text = String(value);
  const harmless = typeof value === "string" && /^[=+\-@\t\r\n]/.test(text) ? `'${text}` : text;
  return `"${harmless.replaceAll('"', '""')}"`;
}
