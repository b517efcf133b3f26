"""Builds a replica of several ranks: rank 0 here, the others as processes.

Owns the order: processes first, so that all ranks load at once.
"""

import torch

from headrace.core.vocabulary import Vocabulary
from headrace.engine.build import assemble, plan
from headrace.engine.options import EngineOptions
from headrace.engine.replica import Replica
from headrace.engine.tensor_parallel.ranks import Leader, Ranks, start_ranks, threads_of_rank
from headrace.engine.torch_build import load_model, over_pages
from headrace.engine.weights.load import DTYPES
from headrace.modelfiles.files import ModelFiles


def build_ranked_engine(files: ModelFiles, vocabulary: Vocabulary, options: EngineOptions) -> tuple[Replica, Ranks]:
    """A replica and its other ranks, to be stopped after it. Raises StartupError as build_engine does, and if a rank
    does; then no process is left."""
    torch.set_num_threads(threads_of_rank(options))
    size = plan(files, options)
    ranks = start_ranks(files, options, size)
    try:
        model = load_model(files, DTYPES[size.layout.dtype], size.max_model_len, ranks.parallel)
        ranks.meet()
        computing = over_pages(Leader(model, ranks), ranks.pages, options, size)
        return assemble(files, vocabulary, options, size, computing), ranks
    except BaseException:
        ranks.stop()
        raise
