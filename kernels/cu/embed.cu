// stream[r, :] = table[token[r], :]. The table is a matrix of tiles; `rounded`
// and `captured` are in blocks.
#include "base.cuh"

#define AT_ONCE 8   // loads of a thread under way

// grid: rows; block: 256.
KERNEL embed(const u32* table, const u32* tokens, float* stream, bf16* rounded, bf16* captured,
             int hidden, int captured_at) {
  wait_for_previous();
  let_next_start();
  const u32 row = blockIdx.x, token = tokens[row];
  const int block_rows = block_rows_of(gridDim.x);
  for (int first = threadIdx.x; first < hidden / 2; first += blockDim.x * AT_ONCE) {
    u32 some[AT_ONCE];
#pragma unroll
    for (int i = 0; i < AT_ONCE; ++i) {
      const int pair = first + i * blockDim.x;
      some[i] = 0;
      if (token == NONE || hidden / 2 <= pair) continue;
      some[i] = table[weight_place(token, pair, hidden / 64)];
    }
#pragma unroll
    for (int i = 0; i < AT_ONCE; ++i) {
      const int pair = first + i * blockDim.x;
      if (hidden / 2 <= pair) break;
      const u32 both = some[i];
      const float2 values = make_float2(low_bf16(both), high_bf16(both));
      *(float2*)(stream + (size_t)row * hidden + pair * 2) = values;
      *(u32*)(rounded + block_place(row, pair * 2, block_rows)) = both;
      if (captured == 0) continue;
      *(u32*)(captured + block_place(row, captured_at + pair * 2, block_rows)) = both;
    }
  }
}
