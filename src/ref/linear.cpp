// Linear and Embed.
#include <vector>

#include "ref/products.h"
#include "ref/ref_backend.h"

namespace synod {

void RefBackend::run(const Linear& op) {
  const ref::WideRows x(op.x);
  std::vector<const double*> inputs;
  std::vector<float*> outputs;
  for (int64_t t = 0; t < op.x.dim(0); ++t) {
    inputs.push_back(x.row(t));
    outputs.push_back(op.out.row_as<float>(t));
  }
  ref::multiply(op.weight, inputs,
                [&](size_t t, int64_t o, double sum) { outputs[t][o] = static_cast<float>(sum); });
}

void RefBackend::run(const Embed& op) {
  for (int64_t t = 0; t < op.ids.dim(0); ++t) {
    float* out = op.out.row_as<float>(t);
    const int64_t id = op.ids.as<const int32_t>()[t];
    if (id < 0 || id >= op.table.n_out) {
      std::fill_n(out, op.table.n_in, 0.0F);
      raise(Status::kBadId);
      continue;
    }
    decode_row(op.table, id, out);
    for (int64_t i = 0; i < op.table.n_in; ++i) out[i] *= op.scale;
  }
}

}  // namespace synod
