"""An encoder of your own: a tokenizer and a table with one row for each token.

    python examples/own_encoder.py encoder public-1.txt public-2.txt

writes a folder that every holder gets a copy of, and prints its fingerprint:

    encoder     1,000 tokens, 64 features
    fingerprint 084334b41c3e...

Name it `dir:encoder`. Train it on public text: every holder can read it.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from ridgeway.common.text.encoder_files import save_encoder
from ridgeway.common.text.table_encoder import TableEncoder, quantise
from ridgeway.common.text.tokenizer import plain_definition


def main(out: str, *texts: str) -> None:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.train(list(texts), trainers.BpeTrainer(vocab_size=1000))
    # Random rows keep tokens apart; rows of a trained model also put like ones together.
    rows = np.random.default_rng(0).standard_normal((tokenizer.get_vocab_size(), 64))
    definition = plain_definition(tokenizer.to_str().encode())
    encoder = TableEncoder("local", definition, *quantise(rows))
    save_encoder(encoder, Path(out))
    print(f"encoder     {encoder.rows:,} tokens, {encoder.width} features")
    print(f"fingerprint {encoder.fingerprint}")


if __name__ == "__main__":
    main(*sys.argv[1:])
