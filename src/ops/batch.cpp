#include "ops/batch.h"

namespace synod {

int64_t closed_blocks(const BatchView& batch, int64_t ratio) {
  int64_t n = 0;
  for (int64_t s = 0; s < batch.n_sequences(); ++s) {
    n += batch.total(s) / ratio - batch.past[static_cast<size_t>(s)] / ratio;
  }
  return n;
}

}  // namespace synod
