// A chat: every turn with its decision, whether the chat stayed with its domain or left it, and why.
// Knows /v1/route with messages. Experts answer only where they are asked to.

import { ask } from "./api.js";
import { announce, button, fill, find, make, show } from "./dom.js";
import { newSession, startAnswer } from "./expert.js";
import { count, percent, whole } from "./numbers.js";
import { arrange, named } from "./palette.js";
import { forgetLink, linkButton } from "./permalink.js";
import { lead } from "./words.js";

let messages = [];
let seat = null; // the domain that the chat is with: null before the first turn, "" after an abstention
let session = newSession();
let stop = () => {};
let busy = null; // the session whose turn is on its way

export function startChat() {
  const box = find("chat-text");
  find("chat-form").addEventListener("submit", (event) => {
    event.preventDefault();
    send(box.value);
  });
  box.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) send(box.value);
  });
  box.addEventListener("input", forgetLink);
  const texts = () => messages.filter(({ role }) => role === "user").map(({ content }) => ["turn", content]);
  find("chat-tools").append(linkButton(() => [["mode", "chat"], ...texts()]), button("New chat", () => (forgetLink(), renew())));
}

export function chatExperts(there) {
  find("chat-ask-part").hidden = !there;
}

export async function replay(turns) {
  renew();
  const own = session;
  for (const turn of turns) if (own === session) await send(turn);
}

function renew() {
  stop();
  messages = [];
  seat = null;
  session = newSession();
  find("chat-turns").replaceChildren();
  show(find("chat-problem"), null);
  show(find("chat-seat"), "No turn yet.");
}

async function send(text) {
  if (!text.trim() || busy === session) return;
  const own = (busy = session);
  stop(); // an answer that is still on its way is cut where it is
  const asked = [...messages, { role: "user", content: text }];
  try {
    const reply = await ask("/v1/route", { messages: asked, explain: true, ...(seat === null ? {} : { after: seat }) });
    if (own === session) taken(asked, text, reply);
  } catch (problem) {
    if (own === session) show(find("chat-problem"), `This could not be routed. ${problem.message}`);
  }
  if (busy === own) busy = null;
}

function taken(asked, text, reply) {
  arrange(reply.order);
  messages = asked;
  find("chat-text").value = "";
  show(find("chat-problem"), null);
  const before = seat;
  if (!reply.stays) seat = reply.abstained ? "" : reply.best;
  const answer = make("div", { class: "beside", hidden: true });
  const item = make(
    "li",
    {},
    make("p", { class: "said" }, text),
    make("div", { class: "turn" }, decided(reply, before), answer),
  );
  find("chat-turns").append(item);
  show(find("chat-seat"), seat ? `The chat is with ${seat}.` : "The chat is with no domain: the router abstained.");
  announce(why(reply, before));
  item.scrollIntoView({ block: "nearest" });
  if (!find("chat-ask").checked || find("chat-ask-part").hidden) return;
  stop = startAnswer(answer, messages, session, (words) => {
    if (messages === asked && words) messages = [...asked, { role: "assistant", content: words }];
  });
}

function decided(reply, before) {
  const where = seat ? named(seat) : (reply.domain ?? "no domain");
  const own = reply.stays && reply.best !== before ? ` This message alone: ${reply.best}, ${percent(reply.confidence)}.` : ` ${percent(reply.confidence)}, ${count(reply.tokens, "token")}.`;
  return make("div", {}, make("p", { class: "where" }, where), make("p", {}, why(reply, before), own), make("p", { class: "quiet" }, lead(reply)));
}

function why(reply, before) {
  const times = (value) => (value > 11.5 ? "more than 100,000" : value > 2.3 ? whole(Math.exp(value)) : Math.exp(value).toFixed(1));
  if (before === null) return reply.abstained ? `The chat begins with an abstention: it goes to ${reply.domain ?? "no domain"}.` : `The chat begins with ${reply.best}.`;
  if (reply.stays && reply.abstained) return `Stayed with ${before || (reply.domain ?? "no domain")}: on this message the router abstains, and that is no evidence.`;
  if (reply.stays && reply.best === before) return `Stayed with ${before}, which is ahead in this message too.`;
  if (reply.stays && reply.follow_up) return `Stayed with ${before || "no domain"}: this message could go on with any subject.`;
  if (reply.evidence === null) return `Switched to ${reply.best}: the release has no domain ${before} any more.`;
  const few = reply.tokens < 12 ? " after so few words" : "";
  const said = `${reply.best} is ${times(reply.evidence)} times as probable as ${before || "the next domain"} in this message, and it takes ${times(reply.evidence_needed)} times${few}.`;
  return reply.stays ? `Stayed with ${before || "no domain"}: ${said}` : `Switched from ${before || "no domain"} to ${reply.best}: ${said}`;
}
