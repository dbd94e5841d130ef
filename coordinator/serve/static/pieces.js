// The prompt cut into the pieces that its tokens stand for.
// A character may be spread over several tokens; they then share one piece, and their weights are added up.
// Knows texts and weights. Draws nothing.

export function pieces(prompt, tokens) {
  const made = [];
  let at = 0;
  const plain = (until) => {
    if (until > at) made.push({ text: prompt.slice(at, until), tokens: 0, domain: null, weight: 0, parts: [] });
  };
  for (const token of tokens) {
    const last = made.at(-1);
    let start = prompt.startsWith(token.text, at) ? at : -1;
    if (!token.text || (start < 0 && last?.tokens && last.text.endsWith(token.text))) {
      if (last?.tokens) join(last, token);
      continue;
    }
    if (start < 0) start = prompt.indexOf(token.text, at);
    if (start < 0) continue; // no text of the prompt's own; the table has it
    plain(start);
    made.push({ ...token, tokens: 1, strongest: Math.abs(token.weight) });
    at = start + token.text.length;
  }
  plain(prompt.length);
  return made;
}

function join(piece, token) {
  piece.tokens += 1;
  piece.weight += token.weight;
  piece.parts = piece.parts.map((part, place) => part + token.parts[place]);
  if (Math.abs(token.weight) > piece.strongest) {
    piece.strongest = Math.abs(token.weight);
    piece.domain = token.domain;
  }
}
