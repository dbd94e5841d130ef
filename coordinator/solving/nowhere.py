"""What belongs to no domain whatever the domains are: letters at random, and languages that no
holder has text in.

A public sample of such text stands against all of the total, in one more column that is solved like
the others: it is about 1 for text like that of the holders, and below 0 for text like the sample. A
language in which holders do have text outweighs the few sentences here.
"""

from __future__ import annotations

import hashlib
from functools import cache, lru_cache

import numpy as np

from ridgeway.common.base.settings import MAX_WINDOW_TOKENS, Ridge, Sampling
from ridgeway.common.base.threads import one_blas_thread
from ridgeway.common.encoding.table_encoder import TableEncoder
from ridgeway.common.encoding.tokenizer import Tokenizer
from ridgeway.common.encoding.windows import Layer, layers
from ridgeway.common.statistics.sums import Statistics
from ridgeway.coordinator.solving.solve import Equation, Matrix, equation, on_cpu

SAMPLINGS = (Sampling(window=8), Sampling(window=MAX_WINDOW_TOKENS))
"""Texts are seen in windows, and whole."""
RIDGE = Ridge(1e-3)
WEIGHT = 0.1
"""What the sample weighs beside all domains together."""
RANDOM_TEXTS = 160

LANGUAGES = """
Bonjour, comment allez-vous aujourd'hui ? Il fait très beau et nous allons nous promener dans la ville.
Hola, ¿cómo estás hoy? Hace buen tiempo y vamos a pasear por la ciudad con nuestros amigos.
Guten Tag, wie geht es Ihnen heute? Das Wetter ist schön und wir gehen in der Stadt spazieren.
Buongiorno, come sta oggi? Il tempo è bello e andiamo a fare una passeggiata in città.
Olá, como você está hoje? O tempo está bom e vamos passear pela cidade com os nossos amigos.
Goedendag, hoe gaat het vandaag met u? Het weer is mooi en wij gaan wandelen in de stad.
Dzień dobry, jak się pan dzisiaj ma? Pogoda jest ładna i idziemy na spacer po mieście.
Здравствуйте, как у вас сегодня дела? Погода хорошая, и мы идём гулять по городу с друзьями.
Добрий день, як у вас сьогодні справи? Погода гарна, і ми йдемо гуляти містом.
你好，你今天怎么样？天气很好，我们和朋友一起去城里散步。
こんにちは、今日はお元気ですか。天気がいいので、友達と町を散歩します。
안녕하세요, 오늘 어떻게 지내세요? 날씨가 좋아서 친구들과 시내를 산책할 거예요.
مرحبا، كيف حالك اليوم؟ الطقس جميل ونحن ذاهبون للتنزه في المدينة مع أصدقائنا.
שלום, מה שלומך היום? מזג האוויר נעים ואנחנו הולכים לטייל בעיר עם חברים.
नमस्ते, आज आप कैसे हैं? मौसम अच्छा है और हम दोस्तों के साथ शहर में घूमने जा रहे हैं।
Merhaba, bugün nasılsınız? Hava güzel ve arkadaşlarımızla şehirde yürüyüşe çıkıyoruz.
Xin chào, hôm nay bạn thế nào? Thời tiết đẹp và chúng tôi đi dạo trong thành phố với bạn bè.
Dobrý den, jak se dnes máte? Počasí je pěkné a jdeme se projít po městě s přáteli.
God dag, hur mår du idag? Vädret är fint och vi ska promenera i staden med våra vänner.
Jó napot, hogy van ma? Szép idő van, és sétálni megyünk a városban a barátainkkal.
Γεια σας, πώς είστε σήμερα; Ο καιρός είναι καλός και πάμε βόλτα στην πόλη με φίλους.
Selamat pagi, apa kabar hari ini? Cuacanya bagus dan kami berjalan-jalan di kota bersama teman.
สวัสดีครับ วันนี้คุณสบายดีไหม อากาศดีและเราจะไปเดินเล่นในเมืองกับเพื่อน
Bună ziua, ce mai faceți astăzi? Vremea este frumoasă și mergem la plimbare prin oraș.
""".strip().splitlines()  # noqa: E501


@cache
def random_texts() -> tuple[str, ...]:
    """Printable characters, words of letters, and bytes, at random; the same ones everywhere."""
    texts = []
    for number in range(RANDOM_TEXTS):
        drawn = hashlib.shake_256(b"nowhere %d" % number).digest(48)
        size = 6 + drawn[0] % 40
        letters = "".join(
            chr(97 + byte % 26) if byte % 6 else " " for byte in drawn[1:size]
        )
        printable = "".join(chr(33 + byte % 94) for byte in drawn[1:size])
        texts.append(
            (letters, printable, letters, drawn[1:size].decode("latin-1"))[number % 4]
        )
    return tuple(texts)


@one_blas_thread()
def familiar_weights(total: Statistics, encoder: TableEncoder) -> Matrix:
    """F×1, in the embedding's own units: about 1 for text like that of the total, below 0 for text
    of nowhere.
    """
    posed = equation(total, encoder.scale, RIDGE)
    gram = posed.gram / posed.mass
    cross = posed.cross.sum(axis=1) / posed.mass
    for texts in (LANGUAGES, random_texts()):
        features = _features(encoder, tuple(texts))
        if not len(features):  # a tokenizer may know none of these letters
            continue
        gram += WEIGHT / 2 * features.T @ features / len(features)
        cross -= WEIGHT / 2 * features.mean(axis=0)
    return on_cpu(Equation(gram, cross[:, None], posed.added, 1)).weights


def _features(encoder: TableEncoder, texts: tuple[str, ...]) -> Matrix:
    """The features of windows of texts and of whole texts, in the embedding's own units, the
    constant one last.
    """
    found: list[Matrix] = [np.zeros((0, encoder.width + 1))]
    for layer in _windows(encoder.tokenizer, texts):
        if not len(layer.ids):
            continue
        counts = np.diff(layer.bounds)[:, None]
        means = (
            np.add.reduceat(
                encoder.table[layer.ids].astype(np.float64), layer.bounds[:-1], axis=0
            )
            / counts
        )
        parts: list[Matrix] = [means * encoder.scale, np.ones((len(means), 1))]
        if encoder.words is not None:
            own = encoder.words.window_features(layer.ids, layer.bounds)
            parts.insert(1, own.astype(np.float64) * encoder.scale)
        found.append(np.concatenate(parts, axis=1))
    return np.concatenate(found)


@lru_cache(maxsize=4)
def _windows(tokenizer: Tokenizer, texts: tuple[str, ...]) -> tuple[Layer, ...]:
    """The windows of texts: a coordinator makes releases with one tokenizer, and the texts are
    always the same.
    """
    ids, lengths = tokenizer.encode_many(texts)
    return tuple(each for how in SAMPLINGS for each in layers(ids, lengths, how))
