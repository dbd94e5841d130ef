// The prompt cut into its words, and into what lies between them and weighs nothing.
// Knows texts and weights. Draws nothing.

export function pieces(prompt, words) {
  const made = [];
  let at = 0;
  const plain = (until) => {
    if (until > at) made.push({ text: prompt.slice(at, until), weighs: false, domain: null, weight: 0, parts: [] });
  };
  for (const word of words) {
    const start = prompt.indexOf(word.text, at);
    if (start < 0 || !word.text) continue; // no text of the prompt's own; the table has it
    const text = word.text.trimStart() || word.text; // the blank before a word is no part of it
    const end = start + word.text.length;
    plain(end - text.length);
    made.push({ ...word, text, weighs: true });
    at = end;
  }
  plain(prompt.length);
  return made;
}
