// A state machine over JSON events: the header has one fixed form, and anything else is refused. Two readers
// that disagree about a header are a way to smuggle tensors, hence no duplicate and no unknown keys.
#include "formats/safetensors_header.h"

#include <algorithm>
#include <array>
#include <set>

#include "base/error.h"
#include "base/tensor.h"
#include "formats/byte_reader.h"
#include "formats/strict_json.h"

namespace synod {
namespace {

using nlohmann::json;

constexpr uint64_t kMaxHeaderBytes = 100'000'000;
constexpr size_t kMaxNameBytes = 4096;

struct NamedType {
  std::string_view name;
  DType type;
};
constexpr std::array<NamedType, 16> kTypes = {{
    {"BOOL", DType::kBool},
    {"U8", DType::kU8},
    {"I8", DType::kI8},
    {"F8_E4M3", DType::kF8E4M3},
    {"F8_E5M2", DType::kF8E5M2},
    {"F8_E8M0", DType::kF8E8M0},
    {"I16", DType::kI16},
    {"U16", DType::kU16},
    {"F16", DType::kF16},
    {"BF16", DType::kBF16},
    {"I32", DType::kI32},
    {"U32", DType::kU32},
    {"F32", DType::kF32},
    {"I64", DType::kI64},
    {"U64", DType::kU64},
    {"F64", DType::kF64},
}};

class HeaderHandler {
 public:
  HeaderHandler(const JsonPosition& position, std::vector<SafetensorsEntry>& entries)
      : position_(position), entries_(entries) {}

  bool null() { unexpected("null"); }
  bool boolean(bool) { unexpected("a bool"); }
  bool number_integer(json::number_integer_t value) { unexpected(fmt::format("{}", value)); }
  bool number_float(json::number_float_t, const std::string& text) { unexpected(text); }
  bool binary(json::binary_t&) { unexpected("bytes"); }
  bool number_unsigned(json::number_unsigned_t value);
  bool string(std::string& value);
  bool start_object(size_t);
  bool end_object();
  bool start_array(size_t);
  bool end_array();
  bool key(std::string& name);
  bool parse_error(size_t, const std::string&, const json::exception& error) {
    bad_json_syntax(position_, error);
  }

 private:
  enum class In { kNothing, kTop, kMetadata, kEntry, kShape, kOffsets };
  enum class Field { kNone, kDtype, kShape, kOffsets };
  static constexpr size_t kOffsetCount = 2;

  void top_key(std::string& name);
  void entry_key(const std::string& name);
  [[noreturn]] void unexpected(std::string_view what) {
    bad_json(position_, "{}unexpected {}", subject(), printable(what));
  }
  std::string subject() const {
    return entries_.empty() || in_ < In::kEntry ? ""
                                                : fmt::format("tensor {}: ", printable(entries_.back().name));
  }

  const JsonPosition& position_;
  std::vector<SafetensorsEntry>& entries_;
  In in_ = In::kNothing;
  Field field_ = Field::kNone;  // of the entry: last key, its value still to come
  bool next_is_metadata_ = false;
  bool has_dtype_ = false, has_shape_ = false, has_offsets_ = false;
  size_t n_offsets_ = 0;
  std::set<std::string> top_keys_;
  std::set<std::string> metadata_keys_;
};

bool HeaderHandler::number_unsigned(json::number_unsigned_t value) {
  SafetensorsEntry* entry = entries_.empty() ? nullptr : &entries_.back();
  if (in_ == In::kShape) {
    if (entry->shape.size() == kMaxRank)
      bad_json(position_, "{}more than {} dimensions", subject(), kMaxRank);
    if (value > INT64_MAX) bad_json(position_, "{}dimension {} is too large", subject(), value);
    entry->shape.push_back(static_cast<int64_t>(value));
  } else if (in_ == In::kOffsets && n_offsets_ < kOffsetCount) {
    (n_offsets_++ == 0 ? entry->begin : entry->end) = value;
  } else {
    unexpected(fmt::format("{}", value));
  }
  return true;
}

bool HeaderHandler::string(std::string& value) {
  if (in_ == In::kMetadata) return true;  // free text, not used
  if (in_ != In::kEntry || field_ != Field::kDtype) unexpected("string \"" + value + "\"");
  entries_.back().dtype = dtype_from_safetensors(value);
  entries_.back().dtype_name = std::move(value);
  has_dtype_ = true;
  field_ = Field::kNone;
  return true;
}

bool HeaderHandler::start_object(size_t) {
  if (in_ == In::kNothing) {
    in_ = In::kTop;
  } else if (in_ == In::kTop) {
    in_ = next_is_metadata_ ? In::kMetadata : In::kEntry;
    has_dtype_ = has_shape_ = has_offsets_ = false;
    field_ = Field::kNone;
  } else {
    unexpected("object");
  }
  return true;
}

bool HeaderHandler::end_object() {
  if (in_ == In::kEntry && !(has_dtype_ && has_shape_ && has_offsets_)) {
    bad_json(position_, "{}expected dtype, shape and data_offsets", subject());
  }
  in_ = in_ == In::kTop ? In::kNothing : In::kTop;
  return true;
}

bool HeaderHandler::start_array(size_t) {
  if (in_ == In::kEntry && field_ == Field::kShape) {
    in_ = In::kShape;
  } else if (in_ == In::kEntry && field_ == Field::kOffsets) {
    in_ = In::kOffsets;
    n_offsets_ = 0;
  } else {
    unexpected("array");
  }
  return true;
}

bool HeaderHandler::end_array() {
  if (in_ == In::kOffsets && n_offsets_ != kOffsetCount) {
    bad_json(position_, "{}expected {} data_offsets, got {}", subject(), kOffsetCount, n_offsets_);
  }
  (in_ == In::kShape ? has_shape_ : has_offsets_) = true;
  in_ = In::kEntry;
  field_ = Field::kNone;
  return true;
}

bool HeaderHandler::key(std::string& name) {
  if (in_ == In::kTop) {
    top_key(name);
  } else if (in_ == In::kMetadata) {
    if (!metadata_keys_.insert(name).second) {
      bad_json(position_, "duplicate key \"{}\" in __metadata__", printable(name));
    }
  } else {
    entry_key(name);
  }
  return true;
}

void HeaderHandler::top_key(std::string& name) {
  if (name.size() > kMaxNameBytes) {
    bad_json(position_, "expected a tensor name of at most {} bytes, got {}", kMaxNameBytes, name.size());
  }
  if (!top_keys_.insert(name).second) bad_json(position_, "duplicate key \"{}\"", printable(name));
  next_is_metadata_ = name == "__metadata__";
  if (!next_is_metadata_) entries_.emplace_back().name = std::move(name);
}

void HeaderHandler::entry_key(const std::string& name) {
  const bool is_dtype = name == "dtype", is_shape = name == "shape", is_offsets = name == "data_offsets";
  if ((is_dtype && has_dtype_) || (is_shape && has_shape_) || (is_offsets && has_offsets_)) {
    bad_json(position_, "{}duplicate key \"{}\"", subject(), name);
  }
  if (!is_dtype && !is_shape && !is_offsets) unexpected("key \"" + name + "\"");
  field_ = is_dtype ? Field::kDtype : is_shape ? Field::kShape : Field::kOffsets;
}

void check_size(const SafetensorsEntry& entry, const std::string& file) {
  // Empty dimensions count as 1 here: strides of the view must not overflow either.
  uint64_t limit = entry.dtype ? static_cast<uint64_t>(info(*entry.dtype).block_bytes) : 1;
  bool empty = false, overflow = false;
  for (const int64_t dim : entry.shape) {
    empty |= dim == 0;
    overflow |= __builtin_mul_overflow(limit, static_cast<uint64_t>(std::max<int64_t>(dim, 1)), &limit);
  }
  if (overflow || limit > INT64_MAX) {
    bad_file("{}: tensor {}: shape {} is too large", file, printable(entry.name), shape_string(entry.shape));
  }
  const uint64_t expected = empty ? 0 : limit;
  if (entry.dtype && entry.end - entry.begin != expected) {
    bad_file("{}: tensor {}: expected {} bytes for {} {}, got data_offsets of {} bytes", file,
             printable(entry.name), expected, entry.dtype_name, shape_string(entry.shape),
             entry.end - entry.begin);
  }
}

void check_tiling(std::span<const SafetensorsEntry> entries, uint64_t data_size, const std::string& file) {
  std::vector<const SafetensorsEntry*> sorted;
  for (const SafetensorsEntry& e : entries) sorted.push_back(&e);
  std::sort(sorted.begin(), sorted.end(), [](const SafetensorsEntry* a, const SafetensorsEntry* b) {
    return std::pair(a->begin, a->end) < std::pair(b->begin, b->end);
  });
  uint64_t expected = 0;
  for (const SafetensorsEntry* e : sorted) {
    if (e->begin != expected) {
      bad_file("{}: tensor {}: expected its bytes to start at {}, got {} ({})", file, printable(e->name),
               expected, e->begin,
               e->begin < expected ? "tensors overlap" : "bytes that belong to no tensor");
    }
    expected = e->end;
  }
  if (expected != data_size) {
    bad_file("{}: expected the tensors to end with the file at {}, got {}", file, data_size, expected);
  }
}

}  // namespace

std::optional<DType> dtype_from_safetensors(std::string_view name) {
  for (const NamedType& t : kTypes) {
    if (t.name == name) return t.type;
  }
  return std::nullopt;
}

std::optional<std::string_view> safetensors_dtype(DType type) {
  for (const NamedType& t : kTypes) {
    if (t.type == type) return t.name;
  }
  return std::nullopt;
}

SafetensorsHeader read_safetensors_header(std::span<const std::byte> bytes, const std::string& file) {
  ByteReader reader(bytes, file);
  const auto length = reader.read<uint64_t>("length of the header");
  const uint64_t max_length = std::min(kMaxHeaderBytes, reader.remaining());
  if (length > max_length) {
    bad_file("{}: expected a header of at most {} bytes, got {}; is the file complete?", file, max_length,
             length);
  }
  const std::string_view text = reader.text(length, "header");
  if (text.empty() || text.front() != '{') bad_file("{}: expected a header that starts with '{{'", file);

  SafetensorsHeader header;
  header.data_start = reader.position();
  JsonPosition position(text, file);
  HeaderHandler handler(position, header.entries);
  parse_json_events(text, position, handler);

  const uint64_t data_size = reader.remaining();
  for (const SafetensorsEntry& e : header.entries) {
    if (e.begin > e.end || e.end > data_size) {
      bad_file("{}: tensor {}: data_offsets [{}, {}] are outside the data of {} bytes; is the file complete?",
               file, printable(e.name), e.begin, e.end, data_size);
    }
    check_size(e, file);
  }
  check_tiling(header.entries, data_size, file);
  std::sort(header.entries.begin(), header.entries.end(),
            [](const SafetensorsEntry& a, const SafetensorsEntry& b) { return a.name < b.name; });
  return header;
}

}  // namespace synod
