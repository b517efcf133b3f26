// The program: a model's forward pass as a list of operations over fixed buffers, and the C interface to run it.
//
// A program is made once; a step runs it over `Step`, whose arrays the caller fills anew. Everything is addressed by
// raw pointers, so neither torch nor Python is known here. All buffers are float32 unless said otherwise, row-major,
// and stay the caller's.
#pragma once
#include <cstdint>

extern "C" {

enum Format : int32_t { F32 = 0, BF16 = 1, INT8 = 2, INT4 = 3, INT8_GROUPS = 4 };
// How a model file stores a row; Q: ggml's blocks of 32 values.
enum Stored : int32_t {
    STORED_F32 = 0, STORED_F16 = 1, STORED_BF16 = 2, STORED_Q8_0 = 3, STORED_Q4_0 = 4, STORED_Q4_1 = 5
};
enum Kind : int32_t { EMBED = 0, NORM = 1, LINEAR = 2, ROPE = 3, ATTEND = 4, GATE = 5, HEAD = 6 };
enum Activation : int32_t { SILU = 0, GELU_TANH = 1 };

// out[row] = weights[ids[row]] * scale. weights: [vocabulary, width], packed by headrace_pack.
struct Embed {
    const void* weights;
    float* out;
    int64_t width;
    float scale;
    int32_t format;
};

// Root-mean-square norm of `in` by `weight`: out = normed, or out += normed where `add` is set.
struct Norm {
    const float* in;
    const float* weight;
    float* out;
    int64_t width;
    float eps;
    int32_t add;
};

// out = in x weights^T + bias, or out += that where `add` is set. in: [row, inner]; out: [row, columns].
// weights: packed by headrace_pack. bias may be null. scratch: headrace_scratch bytes, or null if that is none.
struct Linear {
    const float* in;
    const void* weights;
    const float* bias;
    float* out;
    void* scratch;
    int64_t columns;
    int64_t inner;
    int32_t format;
    int32_t add;
};

// Norms and turns queries and keys of `states` [row, (heads + 2 kv_heads) x dim]: queries to `queries`
// [row, heads x dim], keys and values to the step's slots of `pages`, one layer of the pool,
// [block][kv head][K, V][token][dim] of `format`.
// norms: [heads + kv_heads, dim] or null. cosines, sines: [position, rotary].
struct Rope {
    const float* states;
    const float* norms;
    const float* cosines;
    const float* sines;
    float* queries;
    void* pages;
    int64_t heads;
    int64_t kv_heads;
    int64_t dim;
    int64_t rotary;
    int64_t block_tokens;
    float eps;
    int32_t format;
};

// out[row] = attention of queries[row] over its sequence's pages up to its own position.
// window: tokens that a query sees, itself among them; 0 for all. softcap: 0 for none.
struct Attend {
    const float* queries;
    const void* pages;
    float* out;
    int64_t heads;
    int64_t kv_heads;
    int64_t dim;
    int64_t block_tokens;
    int64_t window;
    float scale;
    float softcap;
    int32_t format;
};

// out[row] = activation(in[row, : inner]) x in[row, inner :].
struct Gate {
    const float* in;
    float* out;
    int64_t inner;
    int32_t activation;
};

// logits[i] = normed hidden[head_rows[i]] x weights^T, soft-capped. normed: room for as many rows as are asked for.
struct Head {
    const float* hidden;
    const float* norm;
    float* normed;
    const void* weights;
    void* scratch;
    int64_t width;
    int64_t vocabulary;
    float eps;
    float softcap;
    int32_t format;
};

struct Op {
    Kind kind;
    union {
        Embed embed;
        Norm norm;
        Linear linear;
        Rope rope;
        Attend attend;
        Gate gate;
        Head head;
    };
};

// What one run works on. rows: tokens. ids, positions, slots (block x block_tokens + place, -1: not written): [rows].
// Sequence s has seq_rows[s] rows from first_row[s] on, at positions that follow one another; its blocks are
// table[s x table_stride ...]. logits: [head_count, vocabulary], of the rows in head_rows.
struct Step {
    const int32_t* ids;
    const int32_t* positions;
    const int64_t* slots;
    const int32_t* first_row;
    const int32_t* seq_rows;
    const int32_t* table;
    const int32_t* head_rows;
    float* logits;
    int64_t rows;
    int64_t sequences;
    int64_t table_stride;
    int64_t head_count;
};

// Name of the instruction set in use, or null where there is none for this processor.
const char* headrace_isa();
// Names of those that it was chosen instead of: this processor has them, but they computed something else than AVX2 when
// they were tried; or "".
const char* headrace_refused();
// Takes the instruction set "avx2", "avx512" or "avx512bf16" from now on, or the best one where `key` is null. 0 if it
// is in use now; else nothing has changed, for: 1 this processor does not have it; 2 it computed something else than
// AVX2; 3 matrices are packed for another, which could not read them.
int32_t headrace_choose(const char* key);
// Floats of one of its vectors. A head's dim must be a multiple of it, and 256 at most.
int32_t headrace_lanes();
// Bytes of a packed [columns, inner] matrix; 0 if it cannot be packed: integers want inner a multiple of 32.
int64_t headrace_packed_bytes(int32_t format, int64_t columns, int64_t inner);
// Packs a matrix [columns, inner] into `packed`, 64-byte aligned, on `threads` threads. rows: where each of its rows
// stands; stored: how. INT4 holds Q4_0 and Q4_1 and INT8_GROUPS holds Q8_0 as they are; else it is rounded here.
void headrace_pack(
    int32_t format, const uint8_t* const* rows, const int32_t* stored, int64_t columns, int64_t inner, void* packed,
    int32_t threads);
// Bytes of scratch that a Linear of `rows` rows wants.
int64_t headrace_scratch(int32_t format, int64_t rows, int64_t inner);
// Runs `count` operations in order on `threads` threads. Returns when all is done.
// Runs of several callers take turns; a program, whose buffers are its own, is for one caller.
void headrace_run(const Op* ops, int64_t count, const Step* step, int32_t threads);
// The same, one operation after the other, each started and ended by itself. Adds to nanoseconds[kind] what those of
// the kind took.
void headrace_run_timed(const Op* ops, int64_t count, const Step* step, int32_t threads, int64_t* nanoseconds);
// Reads `bytes` on `threads` threads and returns the sum of their 64-bit words: how fast memory can be read at all.
// bytes: a multiple of 8.
uint64_t headrace_read(const void* from, int64_t bytes, int32_t threads);
}
