// Mixes: which stored type each tensor of a model gets. A mix is data (mixes.cpp): a base type, the types of
// the output matrix and of the embedding, and rules by part of a tensor's GGUF name; the first rule that fits
// wins. The named mixes choose what llama.cpp's quantizer chooses for the two architectures, tensor by tensor
// (tests/convert/mixes_test.cpp holds the whole table); synod_v4_q2 and synod_g4_q4 are our own.
//
// Planning needs names and shapes alone, so `inspect --plan` can answer for models that are not here.
#pragma once

#include <cstdint>
#include <optional>
#include <regex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"

namespace synod {

// Where in the model a rule holds. `i` is the layer and n the number of layers; for attn_v, and for all
// tensors of models without experts, `i` counts the tensors of that kind instead (not every layer has one).
enum class MixWhere : uint8_t {
  kEverywhere,
  kFirst2,
  kFirst4,
  kFirst16th,        // i < n/16
  kFirst8th,         // i < n/8
  kFirst8thByCount,  // the same, where `i` always counts tensors
  kMiddle,           // n/8 <= i < 7n/8
  kMoreBits,         // i < n/8, or i >= 7n/8, or every third between
};

// What a model must be like for a rule to hold.
enum class MixGuard : uint8_t {
  kNone,
  kStacked,         // the tensor has more than one expert
  kGqa4,            // 4 or more query heads per key-value head in layer 0
  kGqa4OrExperts4,  // or 4 or more experts
  kEightExperts,
  kNotEightExperts,
  kImportance,  // importance weights were given
  kNoImportance,
};

struct MixRule {
  std::string_view part;  // of the tensor's name
  MixWhere where = MixWhere::kEverywhere;
  MixGuard guard = MixGuard::kNone;
  DType type = DType::kF32;
};

struct Mix {
  std::string_view name;
  std::string_view summary;
  uint32_t file_type = 0;           // general.file_type, informative
  DType base = DType::kF32;         // of matrices that no rule names
  DType head = DType::kF32;         // of the output matrix, and of an embedding that serves as one
  DType embedding = DType::kF32;    // of an embedding beside an output matrix
  std::span<const MixRule> shared;  // rules of several mixes, tried first
  std::span<const MixRule> rules;
  bool needs_importance = false;  // also where its types alone would not (wants_importance)
};

// All mixes, plain types (f32, f16, bf16) included, smallest file last within each family.
std::span<const Mix> mixes();
// Lower or upper case; q3_k, q4_k and q5_k mean their _m. nullptr when there is none of that name.
const Mix* find_mix(std::string_view name);
// Throws kUsage listing the names.
const Mix& mix_or_throw(std::string_view name);

// `--tensor-type REGEX=TYPE`: the first override whose expression is found in a name decides.
struct TypeOverride {
  std::string text;  // as given, for messages
  std::regex pattern;
  DType type = DType::kF32;
};
// Throws kUsage for a bad expression, an unknown type, or one that cannot be written.
TypeOverride parse_type_override(const std::string& text);
// A type name for an option such as --output-tensor-type; throws kUsage.
DType parse_stored_type(std::string_view name, std::string_view option);

struct MixOptions {
  bool has_importance = false;
  bool pure = false;            // every matrix that may be quantized gets the base type
  bool quantize_all = false;    // also what llama.cpp's tool quantizes and synod keeps: see keeps_source_type
  bool keep_output = false;     // leave output.weight as it is stored
  std::optional<DType> output;  // instead of the mix's choice
  std::optional<DType> embedding;  // likewise
  std::vector<TypeOverride> overrides;
};

// A tensor to be planned; name as in GGUF files, shape outermost first.
struct MixTensor {
  std::string name;
  std::vector<int64_t> shape;
  bool is_float = true;  // plain floats or a block type; integer tables are copied
};

struct TypePlan {
  std::vector<std::optional<DType>> types;  // per tensor; nullopt = as stored
  std::vector<std::string> notes;           // shapes that needed another type, overrides that were refused
  std::vector<std::string> unmatched;       // overrides that fit no tensor
};
TypePlan plan_types(const Mix& mix, std::span<const MixTensor> tensors, const MixOptions& options);

// Tensors that are never stored in blocks: vectors and norms, routers, per_layer_model_proj, and (unless
// `quantize_all`) hyper-connections and position tables. Small errors there change which experts and rows are
// chosen, and they are few bytes. `n_dims` counts dimensions above 1.
bool keeps_source_type(std::string_view name, std::span<const int64_t> shape, bool quantize_all);

// Number N of "blk.N.…", or -1.
int64_t layer_of_tensor(std::string_view name);

// The type for a row of `n` values: `wanted`, or the nearest one whose blocks fill the row, or f16.
DType fitting_type(DType wanted, int64_t n);

}  // namespace synod
