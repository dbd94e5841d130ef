"""Characters as encoders read them, as typed and mistyped."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from functools import lru_cache
from itertools import chain, pairwise
from unicodedata import ucd_3_2_0

import numpy as np
from numpy.typing import NDArray

# Data of characters that are the same on every machine, whatever Unicode its Python knows: lower
# case, and the classes by which texts are cut into words.
#
# Python's own lower case grows with Unicode, and knows two letters whose lower case is two letters
# or depends on their neighbours. Those stay as they are, and so do letters that came after Unicode
# 3.2, whose tables every Python carries. The classes are those of the tokenizers library, version
# 0.23.3, character by character.


CODE_POINTS = 0x110000
CLASS_LETTERS = "OLNS"
"""Other, letter, number, space: a class is one bit, at the place of its letter."""

ODD_LETTERS = "\u0130\u03a3"
"""İ becomes two letters, and Σ one of two."""

_ALPHABETS = (range(0x2500), range(0xFF00, 0x10000), range(0x10400, 0x10450))
"""Where those tables have letters with a lower case."""


def lower_case(text: str) -> str:
    """The text in lower case; it is as long as before."""
    if text.isascii():
        return text.lower()
    letters = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")
    return lower_letters().take(letters).tobytes().decode("utf-32-le", "surrogatepass")


@lru_cache(maxsize=1)
def lower_letters() -> NDArray[np.uint32]:
    """What every code point becomes."""
    table = np.arange(sys.maxunicode + 1, dtype="<u4")
    for letter in map(chr, chain(*_ALPHABETS)):
        if (
            letter not in ODD_LETTERS
            and letter.lower() != letter
            and ucd_3_2_0.category(letter) != "Cn"
        ):
            table[ord(letter)] = ord(letter.lower())
    return table


def character_classes() -> NDArray[np.uint8]:
    """The class of every code point."""
    runs = RUNS.split()
    starts = [int(run[:-1], 16) for run in runs]
    classes = [1 << CLASS_LETTERS.index(run[-1]) for run in runs]
    sizes = np.diff([*starts, CODE_POINTS])
    return np.repeat(np.array(classes, dtype=np.uint8), sizes)


RUNS = """
0O 9S eO 20S 21O 30N 3aO 41L 5bO 61L 7bO 85S 86O a0S a1O aaL abO b2N b4O b5L b6O b9N baL
bbO bcN bfO c0L d7O d8L f7O f8L 2c2O 2c6L 2d2O 2e0L 2e5O 2ecL 2edO 2eeL 2efO 370L 375O
376L 378O 37aL 37eO 37fL 380O 386L 387O 388L 38bO 38cL 38dO 38eL 3a2O 3a3L 3f6O 3f7L
482O 48aL 530O 531L 557O 559L 55aO 560L 589O 5d0L 5ebO 5efL 5f3O 620L 64bO 660N 66aO
66eL 670O 671L 6d4O 6d5L 6d6O 6e5L 6e7O 6eeL 6f0N 6faL 6fdO 6ffL 700O 710L 711O 712L
730O 74dL 7a6O 7b1L 7b2O 7c0N 7caL 7ebO 7f4L 7f6O 7faL 7fbO 800L 816O 81aL 81bO 824L
825O 828L 829O 840L 859O 860L 86bO 870L 888O 889L 88fO 8a0L 8caO 904L 93aO 93dL 93eO
950L 951O 958L 962O 966N 970O 971L 981O 985L 98dO 98fL 991O 993L 9a9O 9aaL 9b1O 9b2L
9b3O 9b6L 9baO 9bdL 9beO 9ceL 9cfO 9dcL 9deO 9dfL 9e2O 9e6N 9f0L 9f2O 9f4N 9faO 9fcL
9fdO a05L a0bO a0fL a11O a13L a29O a2aL a31O a32L a34O a35L a37O a38L a3aO a59L a5dO
a5eL a5fO a66N a70O a72L a75O a85L a8eO a8fL a92O a93L aa9O aaaL ab1O ab2L ab4O ab5L
abaO abdL abeO ad0L ad1O ae0L ae2O ae6N af0O af9L afaO b05L b0dO b0fL b11O b13L b29O
b2aL b31O b32L b34O b35L b3aO b3dL b3eO b5cL b5eO b5fL b62O b66N b70O b71L b72N b78O
b83L b84O b85L b8bO b8eL b91O b92L b96O b99L b9bO b9cL b9dO b9eL ba0O ba3L ba5O ba8L
babO baeL bbaO bd0L bd1O be6N bf3O c05L c0dO c0eL c11O c12L c29O c2aL c3aO c3dL c3eO
c58L c5bO c5dL c5eO c60L c62O c66N c70O c78N c7fO c80L c81O c85L c8dO c8eL c91O c92L
ca9O caaL cb4O cb5L cbaO cbdL cbeO cddL cdfO ce0L ce2O ce6N cf0O cf1L cf3O d04L d0dO
d0eL d11O d12L d3bO d3dL d3eO d4eL d4fO d54L d57O d58N d5fL d62O d66N d79O d7aL d80O
d85L d97O d9aL db2O db3L dbcO dbdL dbeO dc0L dc7O de6N df0O e01L e31O e32L e34O e40L
e47O e50N e5aO e81L e83O e84L e85O e86L e8bO e8cL ea4O ea5L ea6O ea7L eb1O eb2L eb4O
ebdL ebeO ec0L ec5O ec6L ec7O ed0N edaO edcL ee0O f00L f01O f20N f34O f40L f48O f49L
f6dO f88L f8dO 1000L 102bO 103fL 1040N 104aO 1050L 1056O 105aL 105eO 1061L 1062O 1065L
1067O 106eL 1071O 1075L 1082O 108eL 108fO 1090N 109aO 10a0L 10c6O 10c7L 10c8O 10cdL
10ceO 10d0L 10fbO 10fcL 1249O 124aL 124eO 1250L 1257O 1258L 1259O 125aL 125eO 1260L
1289O 128aL 128eO 1290L 12b1O 12b2L 12b6O 12b8L 12bfO 12c0L 12c1O 12c2L 12c6O 12c8L
12d7O 12d8L 1311O 1312L 1316O 1318L 135bO 1369N 137dO 1380L 1390O 13a0L 13f6O 13f8L
13feO 1401L 166dO 166fL 1680S 1681L 169bO 16a0L 16ebO 16eeN 16f1L 16f9O 1700L 1712O
171fL 1732O 1740L 1752O 1760L 176dO 176eL 1771O 1780L 17b4O 17d7L 17d8O 17dcL 17ddO
17e0N 17eaO 17f0N 17faO 1810N 181aO 1820L 1879O 1880L 1885O 1887L 18a9O 18aaL 18abO
18b0L 18f6O 1900L 191fO 1946N 1950L 196eO 1970L 1975O 1980L 19acO 19b0L 19caO 19d0N
19dbO 1a00L 1a17O 1a20L 1a55O 1a80N 1a8aO 1a90N 1a9aO 1aa7L 1aa8O 1b05L 1b34O 1b45L
1b4dO 1b50N 1b5aO 1b83L 1ba1O 1baeL 1bb0N 1bbaL 1be6O 1c00L 1c24O 1c40N 1c4aO 1c4dL
1c50N 1c5aL 1c7eO 1c80L 1c8bO 1c90L 1cbbO 1cbdL 1cc0O 1ce9L 1cedO 1ceeL 1cf4O 1cf5L
1cf7O 1cfaL 1cfbO 1d00L 1dc0O 1e00L 1f16O 1f18L 1f1eO 1f20L 1f46O 1f48L 1f4eO 1f50L
1f58O 1f59L 1f5aO 1f5bL 1f5cO 1f5dL 1f5eO 1f5fL 1f7eO 1f80L 1fb5O 1fb6L 1fbdO 1fbeL
1fbfO 1fc2L 1fc5O 1fc6L 1fcdO 1fd0L 1fd4O 1fd6L 1fdcO 1fe0L 1fedO 1ff2L 1ff5O 1ff6L
1ffdO 2000S 200bO 2028S 202aO 202fS 2030O 205fS 2060O 2070N 2071L 2072O 2074N 207aO
207fL 2080N 208aO 2090L 209dO 2102L 2103O 2107L 2108O 210aL 2114O 2115L 2116O 2119L
211eO 2124L 2125O 2126L 2127O 2128L 2129O 212aL 212eO 212fL 213aO 213cL 2140O 2145L
214aO 214eL 214fO 2150N 2183L 2185N 218aO 2460N 249cO 24eaN 2500O 2776N 2794O 2c00L
2ce5O 2cebL 2cefO 2cf2L 2cf4O 2cfdN 2cfeO 2d00L 2d26O 2d27L 2d28O 2d2dL 2d2eO 2d30L
2d68O 2d6fL 2d70O 2d80L 2d97O 2da0L 2da7O 2da8L 2dafO 2db0L 2db7O 2db8L 2dbfO 2dc0L
2dc7O 2dc8L 2dcfO 2dd0L 2dd7O 2dd8L 2ddfO 2e2fL 2e30O 3000S 3001O 3005L 3007N 3008O
3021N 302aO 3031L 3036O 3038N 303bL 303dO 3041L 3097O 309dL 30a0O 30a1L 30fbO 30fcL
3100O 3105L 3130O 3131L 318fO 3192N 3196O 31a0L 31c0O 31f0L 3200O 3220N 322aO 3248N
3250O 3251N 3260O 3280N 328aO 32b1N 32c0O 3400L 4dc0O 4e00L a48dO a4d0L a4feO a500L
a60dO a610L a620N a62aL a62cO a640L a66fO a67fL a69eO a6a0L a6e6N a6f0O a717L a720O
a722L a789O a78bL a7ceO a7d0L a7d2O a7d3L a7d4O a7d5L a7ddO a7f2L a802O a803L a806O
a807L a80bO a80cL a823O a830N a836O a840L a874O a882L a8b4O a8d0N a8daO a8f2L a8f8O
a8fbL a8fcO a8fdL a8ffO a900N a90aL a926O a930L a947O a960L a97dO a984L a9b3O a9cfL
a9d0N a9daO a9e0L a9e5O a9e6L a9f0N a9faL a9ffO aa00L aa29O aa40L aa43O aa44L aa4cO
aa50N aa5aO aa60L aa77O aa7aL aa7bO aa7eL aab0O aab1L aab2O aab5L aab7O aab9L aabeO
aac0L aac1O aac2L aac3O aadbL aadeO aae0L aaebO aaf2L aaf5O ab01L ab07O ab09L ab0fO
ab11L ab17O ab20L ab27O ab28L ab2fO ab30L ab5bO ab5cL ab6aO ab70L abe3O abf0N abfaO
ac00L d7a4O d7b0L d7c7O d7cbL d7fcO f900L fa6eO fa70L fadaO fb00L fb07O fb13L fb18O
fb1dL fb1eO fb1fL fb29O fb2aL fb37O fb38L fb3dO fb3eL fb3fO fb40L fb42O fb43L fb45O
fb46L fbb2O fbd3L fd3eO fd50L fd90O fd92L fdc8O fdf0L fdfcO fe70L fe75O fe76L fefdO
ff10N ff1aO ff21L ff3bO ff41L ff5bO ff66L ffbfO ffc2L ffc8O ffcaL ffd0O ffd2L ffd8O
ffdaL ffddO 10000L 1000cO 1000dL 10027O 10028L 1003bO 1003cL 1003eO 1003fL 1004eO 10050L
1005eO 10080L 100fbO 10107N 10134O 10140N 10179O 1018aN 1018cO 10280L 1029dO 102a0L
102d1O 102e1N 102fcO 10300L 10320N 10324O 1032dL 10341N 10342L 1034aN 1034bO 10350L
10376O 10380L 1039eO 103a0L 103c4O 103c8L 103d0O 103d1N 103d6O 10400L 1049eO 104a0N
104aaO 104b0L 104d4O 104d8L 104fcO 10500L 10528O 10530L 10564O 10570L 1057bO 1057cL
1058bO 1058cL 10593O 10594L 10596O 10597L 105a2O 105a3L 105b2O 105b3L 105baO 105bbL
105bdO 105c0L 105f4O 10600L 10737O 10740L 10756O 10760L 10768O 10780L 10786O 10787L
107b1O 107b2L 107bbO 10800L 10806O 10808L 10809O 1080aL 10836O 10837L 10839O 1083cL
1083dO 1083fL 10856O 10858N 10860L 10877O 10879N 10880L 1089fO 108a7N 108b0O 108e0L
108f3O 108f4L 108f6O 108fbN 10900L 10916N 1091cO 10920L 1093aO 10980L 109b8O 109bcN
109beL 109c0N 109d0O 109d2N 10a00L 10a01O 10a10L 10a14O 10a15L 10a18O 10a19L 10a36O
10a40N 10a49O 10a60L 10a7dN 10a7fO 10a80L 10a9dN 10aa0O 10ac0L 10ac8O 10ac9L 10ae5O
10aebN 10af0O 10b00L 10b36O 10b40L 10b56O 10b58N 10b60L 10b73O 10b78N 10b80L 10b92O
10ba9N 10bb0O 10c00L 10c49O 10c80L 10cb3O 10cc0L 10cf3O 10cfaN 10d00L 10d24O 10d30N
10d3aO 10d40N 10d4aL 10d66O 10d6fL 10d86O 10e60N 10e7fO 10e80L 10eaaO 10eb0L 10eb2O
10ec2L 10ec5O 10f00L 10f1dN 10f27L 10f28O 10f30L 10f46O 10f51N 10f55O 10f70L 10f82O
10fb0L 10fc5N 10fccO 10fe0L 10ff7O 11003L 11038O 11052N 11070O 11071L 11073O 11075L
11076O 11083L 110b0O 110d0L 110e9O 110f0N 110faO 11103L 11127O 11136N 11140O 11144L
11145O 11147L 11148O 11150L 11173O 11176L 11177O 11183L 111b3O 111c1L 111c5O 111d0N
111daL 111dbO 111dcL 111ddO 111e1N 111f5O 11200L 11212O 11213L 1122cO 1123fL 11241O
11280L 11287O 11288L 11289O 1128aL 1128eO 1128fL 1129eO 1129fL 112a9O 112b0L 112dfO
112f0N 112faO 11305L 1130dO 1130fL 11311O 11313L 11329O 1132aL 11331O 11332L 11334O
11335L 1133aO 1133dL 1133eO 11350L 11351O 1135dL 11362O 11380L 1138aO 1138bL 1138cO
1138eL 1138fO 11390L 113b6O 113b7L 113b8O 113d1L 113d2O 113d3L 113d4O 11400L 11435O
11447L 1144bO 11450N 1145aO 1145fL 11462O 11480L 114b0O 114c4L 114c6O 114c7L 114c8O
114d0N 114daO 11580L 115afO 115d8L 115dcO 11600L 11630O 11644L 11645O 11650N 1165aO
11680L 116abO 116b8L 116b9O 116c0N 116caO 116d0N 116e4O 11700L 1171bO 11730N 1173cO
11740L 11747O 11800L 1182cO 118a0L 118e0N 118f3O 118ffL 11907O 11909L 1190aO 1190cL
11914O 11915L 11917O 11918L 11930O 1193fL 11940O 11941L 11942O 11950N 1195aO 119a0L
119a8O 119aaL 119d1O 119e1L 119e2O 119e3L 119e4O 11a00L 11a01O 11a0bL 11a33O 11a3aL
11a3bO 11a50L 11a51O 11a5cL 11a8aO 11a9dL 11a9eO 11ab0L 11af9O 11bc0L 11be1O 11bf0N
11bfaO 11c00L 11c09O 11c0aL 11c2fO 11c40L 11c41O 11c50N 11c6dO 11c72L 11c90O 11d00L
11d07O 11d08L 11d0aO 11d0bL 11d31O 11d46L 11d47O 11d50N 11d5aO 11d60L 11d66O 11d67L
11d69O 11d6aL 11d8aO 11d98L 11d99O 11da0N 11daaO 11ee0L 11ef3O 11f02L 11f03O 11f04L
11f11O 11f12L 11f34O 11f50N 11f5aO 11fb0L 11fb1O 11fc0N 11fd5O 12000L 1239aO 12400N
1246fO 12480L 12544O 12f90L 12ff1O 13000L 13430O 13441L 13447O 13460L 143fbO 14400L
14647O 16100L 1611eO 16130N 1613aO 16800L 16a39O 16a40L 16a5fO 16a60N 16a6aO 16a70L
16abfO 16ac0N 16acaO 16ad0L 16aeeO 16b00L 16b30O 16b40L 16b44O 16b50N 16b5aO 16b5bN
16b62O 16b63L 16b78O 16b7dL 16b90O 16d40L 16d6dO 16d70N 16d7aO 16e40L 16e80N 16e97O
16f00L 16f4bO 16f50L 16f51O 16f93L 16fa0O 16fe0L 16fe2O 16fe3L 16fe4O 17000L 187f8O
18800L 18cd6O 18cffL 18d09O 1aff0L 1aff4O 1aff5L 1affcO 1affdL 1afffO 1b000L 1b123O
1b132L 1b133O 1b150L 1b153O 1b155L 1b156O 1b164L 1b168O 1b170L 1b2fcO 1bc00L 1bc6bO
1bc70L 1bc7dO 1bc80L 1bc89O 1bc90L 1bc9aO 1ccf0N 1ccfaO 1d2c0N 1d2d4O 1d2e0N 1d2f4O
1d360N 1d379O 1d400L 1d455O 1d456L 1d49dO 1d49eL 1d4a0O 1d4a2L 1d4a3O 1d4a5L 1d4a7O
1d4a9L 1d4adO 1d4aeL 1d4baO 1d4bbL 1d4bcO 1d4bdL 1d4c4O 1d4c5L 1d506O 1d507L 1d50bO
1d50dL 1d515O 1d516L 1d51dO 1d51eL 1d53aO 1d53bL 1d53fO 1d540L 1d545O 1d546L 1d547O
1d54aL 1d551O 1d552L 1d6a6O 1d6a8L 1d6c1O 1d6c2L 1d6dbO 1d6dcL 1d6fbO 1d6fcL 1d715O
1d716L 1d735O 1d736L 1d74fO 1d750L 1d76fO 1d770L 1d789O 1d78aL 1d7a9O 1d7aaL 1d7c3O
1d7c4L 1d7ccO 1d7ceN 1d800O 1df00L 1df1fO 1df25L 1df2bO 1e030L 1e06eO 1e100L 1e12dO
1e137L 1e13eO 1e140N 1e14aO 1e14eL 1e14fO 1e290L 1e2aeO 1e2c0L 1e2ecO 1e2f0N 1e2faO
1e4d0L 1e4ecO 1e4f0N 1e4faO 1e5d0L 1e5eeO 1e5f0L 1e5f1N 1e5fbO 1e7e0L 1e7e7O 1e7e8L
1e7ecO 1e7edL 1e7efO 1e7f0L 1e7ffO 1e800L 1e8c5O 1e8c7N 1e8d0O 1e900L 1e944O 1e94bL
1e94cO 1e950N 1e95aO 1ec71N 1ecacO 1ecadN 1ecb0O 1ecb1N 1ecb5O 1ed01N 1ed2eO 1ed2fN
1ed3eO 1ee00L 1ee04O 1ee05L 1ee20O 1ee21L 1ee23O 1ee24L 1ee25O 1ee27L 1ee28O 1ee29L
1ee33O 1ee34L 1ee38O 1ee39L 1ee3aO 1ee3bL 1ee3cO 1ee42L 1ee43O 1ee47L 1ee48O 1ee49L
1ee4aO 1ee4bL 1ee4cO 1ee4dL 1ee50O 1ee51L 1ee53O 1ee54L 1ee55O 1ee57L 1ee58O 1ee59L
1ee5aO 1ee5bL 1ee5cO 1ee5dL 1ee5eO 1ee5fL 1ee60O 1ee61L 1ee63O 1ee64L 1ee65O 1ee67L
1ee6bO 1ee6cL 1ee73O 1ee74L 1ee78O 1ee79L 1ee7dO 1ee7eL 1ee7fO 1ee80L 1ee8aO 1ee8bL
1ee9cO 1eea1L 1eea4O 1eea5L 1eeaaO 1eeabL 1eebcO 1f100N 1f10dO 1fbf0N 1fbfaO 20000L
2a6e0O 2a700L 2b73aO 2b740L 2b81eO 2b820L 2cea2O 2ceb0L 2ebe1O 2ebf0L 2ee5eO 2f800L
2fa1eO 30000L 3134bO 31350L 323b0O
"""
"""Where runs of one class begin, in hexadecimal, and the class."""


# Beginnings of texts with errors as people type them: the same for a text on every machine,
# whatever stands beside it.
#
# Everything follows from a hash of the beginning, in whole numbers.


MISTYPED_CHARACTERS = 240
"""How much of a text is copied."""

LEAST_PERCENT = 3
MOST_PERCENT = 25
"""How many characters have errors, at least and at most: each text has a rate of its own."""

CAPITALS_EVERY = 4
"""One text in this many is in capitals."""

_NAME = b"ridgeway.typing.1"
"""What is hashed with every text: another rule has another name."""

Codes = NDArray[np.uint32]
_Places = NDArray[np.int64]
Seeds = NDArray[np.uint64]

REPLACED, DROPPED, DOUBLED, SWAPPED = range(4)
"""What happens to a character: the last two have a letter after them, or change places with the one
before.
"""

_STEPS = np.arange(1, MISTYPED_CHARACTERS + 1, dtype=np.uint64) * np.uint64(
    0x9E3779B97F4A7C15
)
MIXERS = (
    (30, np.uint64(0xBF58476D1CE4E5B9)),
    (27, np.uint64(0x94D049BB133111EB)),
    (31, np.uint64(1)),
)
"""Of splitmix64, which has a number for every place of a text."""


def with_mistyped_copies(texts: Sequence[str]) -> list[str]:
    """The texts, and behind them as many mistyped beginnings, in the same order."""
    return [*texts, *mistyped(texts)]


def mistyped(texts: Sequence[str]) -> list[str]:
    """The beginning of each text, with errors."""
    begun = [text[:MISTYPED_CHARACTERS] for text in texts]
    coded = "".join(begun).encode("utf-32-le", "surrogatepass")
    codes = np.frombuffer(coded, dtype="<u4").astype(np.uint32, copy=False)
    lengths = np.fromiter(map(len, begun), np.int64, len(begun))
    cuts = [0, *(4 * np.cumsum(lengths)).tolist()]
    digests = b"".join(
        [
            hashlib.sha256(_NAME + coded[start:stop]).digest()
            for start, stop in pairwise(cuts)
        ]
    )
    seeds = np.frombuffer(digests, dtype="<u8").reshape(-1, 4)[:, :2].astype(np.uint64)
    row, ends = mistypes(codes, lengths, seeds)
    whole = row.astype("<u4", copy=False).tobytes().decode("utf-32-le", "surrogatepass")
    return [whole[start:stop] for start, stop in pairwise([0, *ends.tolist()])]


def mistypes(codes: Codes, lengths: _Places, seeds: Seeds) -> tuple[Codes, _Places]:
    """What errors leave of texts that stand in one row, and where each ends there. seeds: two
    numbers a text.
    """
    ends = np.cumsum(lengths)
    # of each text: how many characters in a hundred have errors, and whether it is in capitals
    choices = seeds[:, 1]
    percents = LEAST_PERCENT + choices % np.uint64(MOST_PERCENT - LEAST_PERCENT + 1)
    capitals = choices >> np.uint64(32) & np.uint64(CAPITALS_EVERY - 1) == 0
    # a roll for every place: there is an error if its last 16 bits are below the rate
    rolls = _mixed(seeds[:, :1] + _STEPS)
    rates = (percents * np.uint64(1 << 16) + np.uint64(99)) // np.uint64(100)
    texts, positions = np.nonzero(rolls.astype(np.uint16) < rates[:, None])
    inside = positions < lengths[texts]
    texts = texts[inside]
    positions = positions[inside]
    struck = (ends - lengths)[texts] + positions
    written = _in_capitals(codes, np.repeat(capitals, lengths))
    return _with_errors(written, struck, rolls[texts, positions], positions > 0, ends)


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    for shift, multiplier in MIXERS:
        values ^= values >> np.uint64(shift)
        values *= multiplier
    return values


def _in_capitals(codes: Codes, chosen: NDArray[np.bool_]) -> Codes:
    """ASCII's small letters as capitals where they are chosen."""
    return codes - np.uint32(32) * (chosen & (codes - np.uint32(ord("a")) < 26))


def _with_errors(
    codes: Codes,
    struck: _Places,
    rolls: NDArray[np.uint64],
    has_before: NDArray[np.bool_],
    ends: _Places,
) -> tuple[Codes, _Places]:
    """What errors at the places that are struck leave of the texts, and where each ends; they stand
    in one row.
    """
    kinds = rolls >> np.uint64(16) & np.uint64(3)
    fractions = rolls >> np.uint64(32)
    letters = ord("a") + (fractions * np.uint64(26) >> np.uint64(32)).astype(np.uint32)
    written = codes.copy()
    # of several swaps in a row, the first alone: pairs do not overlap
    swapped = kinds == SWAPPED
    second = struck[swapped]
    after_another = np.diff(second, prepend=-2) == 1
    second = second[~after_another & has_before[swapped]]
    written[second] = codes[second - 1]
    written[second - 1] = codes[second]
    replaced = kinds == REPLACED
    written[struck[replaced]] = letters[replaced]
    # how many characters each becomes; a doubled one has a letter behind it
    doubled = kinds == DOUBLED
    sizes = np.ones(len(codes), dtype=np.int64)
    sizes[struck[kinds == DROPPED]] = 0
    sizes[struck[doubled]] = 2
    stops = np.append(0, np.cumsum(sizes))
    row = np.repeat(written, sizes)
    row[stops[struck[doubled]] + 1] = letters[doubled]
    return row, stops[ends]
