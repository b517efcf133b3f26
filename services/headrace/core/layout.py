"""The shape of KV pages (decision 6), and what two workers must have alike before pages can move between them.

Pages of one model move between workers of any number of ranks and of different page sizes; whatever else differs is
named in a sentence and refused.
"""

from dataclasses import dataclass, replace

DTYPE_BYTES: dict[str, int] = {
    "float32": 4,
    "bfloat16": 2,
    "float16": 2,
    "fp8_e4m3": 1,
    "fp8_e5m2": 1,
    "int8": 1,
}
# Of a worker's KV pool, where nobody says.
DEFAULT_KV_BYTES = 1024 * 1024 * 1024
_SHOWN_DIGITS = 12


@dataclass(frozen=True, slots=True)
class KvLayout:
    """Geometry of the KV cache of one model replica.

    A page holds one layer of one block as `[kv head][K,V]{[token][dim], scales}`; a block is its `layers` pages. So a
    rank's heads are one run of a page, with their scales.
    dtype: a key of DTYPE_BYTES. scale_bytes: of the scales behind each head's K and again behind its V.
    """

    layers: int
    kv_heads: int
    head_dim: int
    block_tokens: int
    dtype: str
    scale_bytes: int = 0

    @property
    def page_bytes(self) -> int:
        """Bytes of one layer of one block."""
        return self.kv_heads * 2 * (self.block_tokens * self.head_dim * DTYPE_BYTES[self.dtype] + self.scale_bytes)

    @property
    def block_bytes(self) -> int:
        """Bytes of one block over all layers."""
        return self.layers * self.page_bytes

    @property
    def any_page_size(self) -> "KvLayout":
        """Equal for two layouts if and only if pages of one can be made from pages of the other. Nothing tells which
        tokens a scale is of, so pages with scales are not cut."""
        return self if self.scale_bytes else replace(self, block_tokens=0)


@dataclass(frozen=True, slots=True)
class Descriptor:
    """All of a worker but its link that decides with whom it can exchange pages.

    digest: of model and KV, as in WorkerInfo.model_digest. weights, recipe: what it was made from, empty where nobody
    says; they name a difference and do not make one.
    """

    digest: bytes
    layout: KvLayout
    weights: bytes = b""
    recipe: str = ""

    @property
    def fit(self) -> tuple[bytes, KvLayout]:
        """Equal for two workers if and only if there is no `difference` between them."""
        return self.digest, self.layout.any_page_size


def difference(one: Descriptor, other: Descriptor) -> str:
    """What keeps pages of either from being pages of the other, as a clause about both: "their ... are ... and ...";
    "" if nothing does."""
    alike = one.digest == other.digest
    return (
        ("" if alike else weights_difference(one.weights, other.weights))
        or layout_difference(one.layout, other.layout)
        or ("" if alike else _digest_difference(one, other))
    )


def weights_difference(one: bytes, other: bytes) -> str:
    """The clause for the files of two models, by their digests; "" if they are the same or one is not known."""
    if not one or not other or one == other:
        return ""
    return f"their weights are {shown(one)} and {shown(other)}"


def layout_difference(one: KvLayout, other: KvLayout) -> str:
    """The clause for two layouts; "" if pages of one can be made from pages of the other."""
    if one.any_page_size == other.any_page_size:
        return ""
    facts = (
        ("their KV pages are of {} and {}", one.dtype, other.dtype),
        ("they have {} and {} layers", one.layers, other.layers),
        ("they have {} and {} KV heads", one.kv_heads, other.kv_heads),
        ("their heads have {} and {} dimensions", one.head_dim, other.head_dim),
        ("their scales take {} and {} bytes a head", one.scale_bytes, other.scale_bytes),
        ("their pages have {} and {} tokens, and pages with scales are not cut", one.block_tokens, other.block_tokens),
    )
    return next(clause.format(here, there) for clause, here, there in facts if here != there)


def shown(digest: bytes) -> str:
    """A digest as people compare it."""
    return digest.hex()[:_SHOWN_DIGITS] or "unknown"


def _digest_difference(one: Descriptor, other: Descriptor) -> str:
    if one.recipe and other.recipe and one.recipe != other.recipe:
        return f"their keys and values are made as {one.recipe!r} and {other.recipe!r}"
    return f"their model digests are {shown(one.digest)} and {shown(other.digest)}"
