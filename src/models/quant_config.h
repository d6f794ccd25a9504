// What config.json says about stored types. Shapes and twins decide what a tensor is; the configuration
// supplies tile and group sizes, and must not contradict the shapes.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/checkpoint.h"

namespace synod {

// The architecture's names as stored: GGUF's general.architecture, or config.json's model_type (top,
// text_config).
std::vector<std::string> stored_architectures(const Checkpoint& checkpoint);

struct MlxQuant {
  enum class Mode { kAffine, kMxFp4, kMxFp8, kNvFp4 };
  Mode mode = Mode::kAffine;
  std::optional<int64_t> group, bits;
};

class QuantConfig {
 public:
  // Throws kBadFile for methods that synod cannot read.
  static QuantConfig read(const Checkpoint& checkpoint);

  int64_t tile_out = 128, tile_in = 128;  // FP8 block scales
  int64_t nvfp4_group = 16;
  // Settings of an MLX module by its path; nullopt = the file says that it is not quantized. Without any
  // "quantization" object every field is open.
  std::optional<MlxQuant> mlx(std::string_view module) const;

 private:
  MlxQuant mlx_default_;
  std::map<std::string, std::optional<MlxQuant>, std::less<>> mlx_modules_;
};

}  // namespace synod
