"""All of the corpus: importing it registers the cases."""

import corpus_ranks
import corpus_terms
from cases import CASES

__all__ = ["CASES", "corpus_ranks", "corpus_terms"]
