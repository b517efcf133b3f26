"""The shape of KV pages (decision 6): what two workers must agree on before bytes move."""

from dataclasses import dataclass

DTYPE_BYTES: dict[str, int] = {"float32": 4, "bfloat16": 2, "float16": 2}
# Of a worker's KV pool, where nobody says.
DEFAULT_KV_BYTES = 1024 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class KvLayout:
    """Geometry of the KV cache of one model replica.

    A page holds one layer of one block as `[kv head][K,V][token][dim]`; a block is its `layers` pages.
    dtype: a key of DTYPE_BYTES.
    """

    layers: int
    kv_heads: int
    head_dim: int
    block_tokens: int
    dtype: str

    @property
    def page_bytes(self) -> int:
        """Bytes of one layer of one block."""
        return self.kv_heads * 2 * self.block_tokens * self.head_dim * DTYPE_BYTES[self.dtype]

    @property
    def block_bytes(self) -> int:
        """Bytes of one block over all layers."""
        return self.layers * self.page_bytes
