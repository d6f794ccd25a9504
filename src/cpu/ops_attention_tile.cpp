#include <algorithm>
#include <cmath>

#include "cpu/ops_attention.h"
#include "quant/codec.h"

namespace synod::cpu {

void States::clear(int64_t n_rows, int64_t d) {
  m.assign(static_cast<size_t>(n_rows), -INFINITY);
  l.assign(static_cast<size_t>(n_rows), 0.0F);
  o.assign(static_cast<size_t>(n_rows * d), 0.0F);
}

void AttentionTile::start(const VecTable& vec, int64_t d, float scale, int64_t rows_per_token) {
  vec_ = &vec;
  d_ = d, scale_ = scale, rows_per_token_ = rows_per_token;
  ready_ = false;
  q_.clear(), out_.clear();
}

void AttentionTile::prepare() {
  const auto n_rows = static_cast<int64_t>(q_.size());
  total_.clear(n_rows, d_);
  scores_.resize(static_cast<size_t>(n_rows * kChunkKeys));
  correction_.resize(static_cast<size_t>(n_rows));
  ready_ = true;
}

void AttentionTile::attend(const KeySource& source, const std::vector<int64_t>& first,
                           const std::vector<int64_t>& end) {
  if (!ready_) prepare();
  const auto n_rows = static_cast<int64_t>(q_.size());
  const int64_t begin = *std::ranges::min_element(first), stop = *std::ranges::max_element(end);
  for (int64_t segment = begin / kSegmentKeys * kSegmentKeys; segment < stop; segment += kSegmentKeys) {
    part_.clear(n_rows, d_);
    const int64_t segment_end = std::min(stop, segment + kSegmentKeys);
    const int64_t from = std::max(begin, segment) / kChunkKeys * kChunkKeys;
    for (int64_t chunk = from; chunk < segment_end; chunk += kChunkKeys)
      attend_chunk(source, chunk, first, end);
    for (int64_t r = 0; r < n_rows; ++r) {
      const auto t = static_cast<size_t>(r / rows_per_token_), i = static_cast<size_t>(r);
      if (std::max(first[t], segment) >= std::min(end[t], segment_end)) continue;
      vec_->merge(&total_.m[i], &total_.l[i], total_.o.data() + r * d_, part_.m[i], part_.l[i],
                  part_.o.data() + r * d_, d_);
    }
  }
}

void AttentionTile::attend_chunk(const KeySource& source, int64_t chunk, const std::vector<int64_t>& first,
                                 const std::vector<int64_t>& end) {
  const auto n_rows = static_cast<int64_t>(q_.size()), n_tokens = n_rows / rows_per_token_;
  const auto lo_of = [&](int64_t t) { return std::max<int64_t>(0, first[static_cast<size_t>(t)] - chunk); };
  const auto hi_of = [&](int64_t t) { return std::min(kChunkKeys, end[static_cast<size_t>(t)] - chunk); };
  int64_t lo = kChunkKeys, hi = 0;
  bool same = true;
  for (int64_t t = 0; t < n_tokens; ++t) {
    same = same && lo_of(t) == lo_of(0) && hi_of(t) == hi_of(0);
    if (lo_of(t) < hi_of(t)) lo = std::min(lo, lo_of(t)), hi = std::max(hi, hi_of(t));
  }
  if (lo >= hi) return;
  const float* keys[kChunkKeys];
  const float* other[kChunkKeys];
  load(*source.keys, source, chunk, lo, hi, key_buffer_, keys);
  const float* const* values = keys;
  if (source.values != source.keys)
    load(*source.values, source, chunk, lo, hi, value_buffer_, other), values = other;
  vec_->dots(q_.data(), n_rows, keys + lo, hi - lo, d_, scale_, scores_.data() + lo, kChunkKeys);
  for (int64_t r = 0; r < n_rows; ++r) {
    const int64_t t = r / rows_per_token_;
    if (lo_of(t) >= hi_of(t)) continue;
    const auto i = static_cast<size_t>(r);
    correction_[i] =
        vec_->softmax(scores_.data() + r * kChunkKeys, lo_of(t), hi_of(t), &part_.m[i], &part_.l[i]);
  }
  if (same) return add_values(values, 0, n_rows, lo, hi);
  for (int64_t t = 0; t < n_tokens; ++t) {
    if (lo_of(t) < hi_of(t)) add_values(values, t * rows_per_token_, rows_per_token_, lo_of(t), hi_of(t));
  }
}

void AttentionTile::add_values(const float* const* values, int64_t row, int64_t n_rows, int64_t lo,
                               int64_t hi) {
  vec_->add_values(scores_.data() + row * kChunkKeys, n_rows, values, lo, hi, d_, correction_.data() + row,
                   part_.o.data() + row * d_, d_);
}

void AttentionTile::load(const CacheRows& rows, const KeySource& source, int64_t chunk, int64_t lo,
                         int64_t hi, std::vector<float>& buffer, const float** out) {
  const bool direct = rows.type == DType::kF32;
  const DTypeInfo& type = info(rows.type);
  const bool whole_blocks = source.offset % type.block_values == 0 && d_ % type.block_values == 0;
  if (!direct) buffer.resize(static_cast<size_t>(kChunkKeys * d_));
  for (int64_t j = lo; j < hi; ++j) {
    const int64_t index = chunk + j;
    const std::byte* stored = rows.row(source.seq, source.list == nullptr ? index : source.list[index]);
    if (direct) {
      out[j] = reinterpret_cast<const float*>(stored) + source.offset;
      continue;
    }
    float* row = buffer.data() + j * d_;
    out[j] = row;
    if (rows.type == DType::kBF16) {
      vec_->from_bf16(reinterpret_cast<const uint16_t*>(stored) + source.offset, d_, row);
    } else if (rows.type == DType::kF16) {
      vec_->from_f16(reinterpret_cast<const uint16_t*>(stored) + source.offset, d_, row);
    } else if (whole_blocks) {
      decode(rows.type, stored + row_bytes(rows.type, source.offset), d_, row);
    } else {
      decoded_.resize(static_cast<size_t>(rows.row_dim));
      decode(rows.type, stored, rows.row_dim, decoded_.data());
      std::copy_n(decoded_.data() + source.offset, d_, row);
    }
  }
}

void AttentionTile::finish(const float* sinks) {
  for (size_t r = 0; r < q_.size(); ++r) {
    const float sink = sinks == nullptr ? -INFINITY : sinks[r % static_cast<size_t>(rows_per_token_)];
    vec_->finish(total_.m[r], total_.l[r], total_.o.data() + static_cast<int64_t>(r) * d_, sink, d_, out_[r]);
  }
}

}  // namespace synod::cpu
