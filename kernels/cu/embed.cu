// stream[r, :] = table[token[r], :]. The table is a matrix of tiles, see matmul_few.cu; `rounded`
// and `captured` are in blocks.
#include "base.cuh"

// grid: rows; block: 128.
KERNEL embed(const u32* table, const u32* tokens, float* stream, bf16* rounded, bf16* captured,
             int hidden, int captured_at, int captured_columns) {
  wait_for_previous();
  let_next_start();
  const u32 row = blockIdx.x, token = tokens[row];
  const u32 output = token % 16;
  const u32* tile = table + (size_t)(token / 16) * (hidden / 16) * 128;
  for (int pair = threadIdx.x; pair < hidden / 2; pair += blockDim.x) {
    u32 step = pair / 8, within = pair % 8;
    u32 lane = output % 8 * 4 + within % 4, part = output / 8 + within / 4 * 2;
    u32 both = token == NONE ? 0 : tile[(step * WARP + lane) * 4 + part];
    float2 values = make_float2(low_bf16(both), high_bf16(both));
    *(float2*)(stream + (size_t)row * hidden + pair * 2) = values;
    *(u32*)(rounded + block_place(row, pair * 2, hidden)) = both;
    if (captured != 0) {
      *(u32*)(captured + block_place(row, captured_at + pair * 2, captured_columns)) = both;
    }
  }
}
