// An expert's answer as it comes, through the gateway, and a button that stops it.
// Knows /v1/chat/completions and its stream. Nothing of it is kept.

import { open, Refused } from "./api.js";
import { button, fill, make } from "./dom.js";

const REASONS = {
  best: "the expert of the domain",
  quality: "the best quality to expect",
  cost: "worth more at its cost",
  missing: "the domain has no expert of its own",
  abstained: "the router abstained",
  sticky: "the conversation is with it",
};

export function startAnswer(place, messages, session, onEnd = () => {}) {
  // Fills `place` with the answer to a chat; returns what stops it.
  const stopper = new AbortController();
  const text = make("div", { class: "answer", tabindex: "0", role: "group", "aria-label": "The expert's answer" });
  const note = make("p", { class: "quiet", role: "status" }, "The expert is asked.");
  const stop = button("Stop", () => stopper.abort());
  fill(place, note, text, stop);
  let over = false;
  const ended = (words) => {
    over = true;
    stop.remove();
    note.textContent = words;
    onEnd(text.textContent);
  };
  answer(messages, session, stopper.signal, (piece) => text.append(piece), (words) => (note.textContent = words)).then(ended, (problem) =>
    ended(stopper.signal.aborted ? "Stopped." : `The expert did not answer to the end. ${problem.message}`),
  );
  return () => over || stopper.abort();
}

async function answer(messages, session, signal, onText, onHead) {
  const body = { model: "auto", stream: true, messages };
  const response = await open("/v1/chat/completions", body, { signal, headers: { Accept: "text/event-stream", "x-session-id": session } });
  const head = (name) => decodeURIComponent(response.headers.get(`x-ridgeway-${name}`) ?? "");
  const [reason, tried] = [head("reason"), head("tried")];
  const words = `${head("expert")} answers: ${REASONS[reason] ?? reason}${tried ? ` (before: ${tried})` : ""}.`;
  onHead(words);
  for await (const line of lines(response.body)) {
    if (!line.startsWith("data:") || line.slice(5).trim() === "[DONE]") continue;
    const event = JSON.parse(line.slice(5));
    if (event.error) throw new Refused(0, event.error.message);
    onText(event.choices?.[0]?.delta?.content ?? "");
  }
  return words.replace("answers:", "answered:");
}

async function* lines(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    const parts = (rest + (value ?? "")).split("\n");
    rest = done ? "" : parts.pop();
    yield* parts;
    if (done) return;
  }
}

export function newSession() {
  return [...crypto.getRandomValues(new Uint8Array(12))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}
