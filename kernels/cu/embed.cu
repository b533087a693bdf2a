// stream[r, :] = table[token[r], :]. The table is a matrix of tiles; `rounded`
// and `captured` are in blocks.
#include "base.cuh"

// grid: rows; block: 128.
KERNEL embed(const u32* table, const u32* tokens, float* stream, bf16* rounded, bf16* captured,
             int hidden, int captured_at) {
  wait_for_previous();
  let_next_start();
  const u32 row = blockIdx.x, token = tokens[row];
  const int block_rows = block_rows_of(gridDim.x);
  for (int pair = threadIdx.x; pair < hidden / 2; pair += blockDim.x) {
    u32 both = token == NONE ? 0 : table[weight_place(token, pair, hidden / 64)];
    float2 values = make_float2(low_bf16(both), high_bf16(both));
    *(float2*)(stream + (size_t)row * hidden + pair * 2) = values;
    *(u32*)(rounded + block_place(row, pair * 2, block_rows)) = both;
    if (captured != 0) {
      *(u32*)(captured + block_place(row, captured_at + pair * 2, block_rows)) = both;
    }
  }
}
