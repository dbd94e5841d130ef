"""Texts in the 16 languages of the sentence encoder, and odd ones."""

from __future__ import annotations

LANGUAGES = {
    "ar": "كم يبلغ رصيد حسابي المصرفي اليوم؟",
    "de": "Wie hoch ist der Kontostand meines Sparbuchs? Größe und Maß zählen.",
    "en": "How much money do I have in my savings account?",
    "es": "¿Cuánto dinero tengo en mi cuenta de ahorros?",
    "fr": "Combien d'argent ai-je sur mon compte d'épargne ?",
    "it": "Quanti soldi ho sul mio conto di risparmio?",
    "ja": "私の普通預金口座にはいくら入っていますか。ｶﾀｶﾅも読みます。",
    "ko": "제 저축 계좌에 돈이 얼마나 있나요?",
    "nl": "Hoeveel geld staat er op mijn spaarrekening?",
    "pl": "Ile pieniędzy mam na koncie oszczędnościowym?",
    "pt": "Quanto dinheiro tenho na minha conta poupança?",
    "ru": "Сколько денег на моём сберегательном счёте?",
    "th": "ฉันมีเงินในบัญชีออมทรัพย์เท่าไหร่",
    "tr": "Tasarruf hesabımda ne kadar param var?",
    "zh": "我的储蓄账户里有多少钱？",
    "zh-TW": "我的儲蓄帳戶裡有多少錢？",
}
ODD = {
    "one letter": "a",
    "code": "def f(x):\n\treturn x ** 2  # tabs   and spaces",
    "numbers": "On 2024-01-31 it cost $1,234.56, ½ of ①②③ ™",
    "unknown": "runes ᚠᚢᚦ ᚨ, \U00013000\U00013001 and 😀😀",
    "decomposed": "Gro\u0308ße, e\u0301le\u0300ve, \u1112\u1161\u11ab\u1100\u1173\u11af",
    "spaces": "\u3000 wide\u00a0 and\t\tnarrow \n spaces\u200b ",
    "markers": "<s> a </s> ▁b <unk>",
    "overlong": "The same sentence comes again and again. " * 90,
}
TEXTS = LANGUAGES | ODD
