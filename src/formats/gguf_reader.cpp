// GGUF reader. One pass over the header with every length compared with what is left of the file, then the
// tensor ranges are checked against the data section and each other. Nothing of the data section is touched.
#include <algorithm>
#include <array>
#include <set>
#include <span>

#include "base/log.h"
#include "formats/byte_reader.h"
#include "formats/gguf.h"
#include "formats/gguf_format.h"
#include "formats/paths.h"

namespace synod {
namespace {

using gguf::ValueType;

// A tensor's place in the file.
struct TensorRange {
  std::string_view name;
  uint64_t begin = 0;  // from the start of the data section
  uint64_t end = 0;
};

struct ParsedFile {
  GgufMetadata metadata;
  std::vector<Tensor> tensors;
  std::vector<std::unique_ptr<std::string>> names;
};

bool add_overflows(uint64_t a, uint64_t b, uint64_t* sum) { return __builtin_add_overflow(a, b, sum); }

class Parser {
 public:
  Parser(std::span<const std::byte> bytes, const std::string& file)
      : bytes_(bytes), file_(file), reader_(bytes, file), result_{GgufMetadata(file), {}, {}} {}

  ParsedFile run() {
    read_header();
    for (uint64_t i = 0; i < n_keys_; ++i) read_key_value(i);
    alignment_ = gguf::alignment(result_.metadata, file_);
    for (uint64_t i = 0; i < n_tensors_; ++i) read_tensor_info(i);
    place_tensors();
    return std::move(result_);
  }

 private:
  void read_header();
  void read_key_value(uint64_t index);
  GgufValue read_value(ValueType type);
  GgufValue read_array();
  GgufValue read_numbers(DType element, uint64_t count);
  std::string read_string();
  bool read_bool();
  void read_tensor_info(uint64_t index);
  std::string_view read_tensor_name(uint64_t index);
  std::vector<int64_t> read_shape();
  uint64_t tensor_bytes(DType type, std::span<const int64_t> shape) const;
  void place_tensors();
  void check_no_overlap() const;
  void warn_unless_contiguous() const;

  template <typename... Args>
  [[noreturn]] void bad(fmt::format_string<Args...> format, Args&&... args) const {
    const std::string& subject = reader_.subject();
    bad_file("{}: {}{}{}", file_, subject, subject.empty() ? "" : ": ",
             fmt::format(format, std::forward<Args>(args)...));
  }

  std::span<const std::byte> bytes_;
  const std::string& file_;
  ByteReader reader_;
  ParsedFile result_;
  uint64_t n_tensors_ = 0;
  uint64_t n_keys_ = 0;
  uint64_t alignment_ = 0;
  std::set<std::string_view> seen_names_;
  std::vector<TensorRange> ranges_;  // one per tensor, in file order
};

void Parser::read_header() {
  if (reader_.text(std::min<uint64_t>(gguf::kMagic.size(), reader_.remaining()), "magic") != gguf::kMagic) {
    bad("not a GGUF file: expected the bytes \"GGUF\" at its start");
  }
  const auto version = reader_.read<uint32_t>("version");
  // A big-endian file carries no flag; its version 3 reads as 0x03000000 here.
  if (version != 0 && (version & 0xffffU) == 0) bad("big-endian GGUF is not supported");
  if (version != 2 && version != gguf::kVersion) {
    bad("expected GGUF version 2 or 3, got {}{}", version,
        version == 1 ? "; convert the model again with a current converter" : "");
  }
  n_tensors_ = reader_.read<uint64_t>("tensor count");
  n_keys_ = reader_.read<uint64_t>("key count");
  constexpr uint64_t kMinInfoBytes = 24;
  constexpr uint64_t kMinKeyBytes = 13;
  const uint64_t max_tensors = std::min(gguf::kMaxTensors, reader_.remaining() / kMinInfoBytes);
  const uint64_t max_keys = std::min(gguf::kMaxKeys, reader_.remaining() / kMinKeyBytes);
  if (n_tensors_ > max_tensors)
    bad("expected at most {} tensors in this file, got {}", max_tensors, n_tensors_);
  if (n_keys_ > max_keys) bad("expected at most {} keys in this file, got {}", max_keys, n_keys_);
}

void Parser::read_key_value(uint64_t index) {
  reader_.set_subject(fmt::format("key number {}", index));
  const auto length = reader_.read<uint64_t>("length of the key");
  if (length == 0 || length > gguf::kMaxKeyBytes) {
    bad("expected a key of 1 to {} bytes, got {}", gguf::kMaxKeyBytes, length);
  }
  std::string key(reader_.text(length, "key"));
  reader_.set_subject("key " + printable(key));
  if (const auto problem = gguf::key_problem(key)) bad("{}", *problem);
  if (result_.metadata.has(key)) bad("appears twice");
  const auto type = static_cast<ValueType>(reader_.read<uint32_t>("type"));
  result_.metadata.set(std::move(key), read_value(type));
}

bool Parser::read_bool() {
  const auto byte = reader_.read<uint8_t>("bool");
  if (byte > 1) bad("expected a bool of 0 or 1, got {}", byte);
  return byte == 1;
}

std::string Parser::read_string() {
  const auto length = reader_.read<uint64_t>("length of the string");
  if (length > gguf::kMaxStringBytes) {
    bad("expected a string of at most {} bytes, got {}", gguf::kMaxStringBytes, length);
  }
  return std::string(reader_.text(length, "string"));
}

GgufValue Parser::read_value(ValueType type) {
  switch (type) {
    case ValueType::kU8:
      return {reader_.read<uint8_t>("u8")};
    case ValueType::kI8:
      return {reader_.read<int8_t>("i8")};
    case ValueType::kU16:
      return {reader_.read<uint16_t>("u16")};
    case ValueType::kI16:
      return {reader_.read<int16_t>("i16")};
    case ValueType::kU32:
      return {reader_.read<uint32_t>("u32")};
    case ValueType::kI32:
      return {reader_.read<int32_t>("i32")};
    case ValueType::kF32:
      return {reader_.read<float>("f32")};
    case ValueType::kBool:
      return {read_bool()};
    case ValueType::kString:
      return {read_string()};
    case ValueType::kArray:
      return read_array();
    case ValueType::kU64:
      return {reader_.read<uint64_t>("u64")};
    case ValueType::kI64:
      return {reader_.read<int64_t>("i64")};
    case ValueType::kF64:
      return {reader_.read<double>("f64")};
  }
  bad("unknown value type {}", static_cast<uint32_t>(type));
}

GgufValue Parser::read_array() {
  const auto type = static_cast<ValueType>(reader_.read<uint32_t>("element type"));
  const auto count = reader_.read<uint64_t>("length of the array");
  if (type == ValueType::kArray) bad("arrays of arrays are not supported");
  const auto dtype = gguf::scalar_dtype(type);
  if (!dtype && type != ValueType::kString) bad("unknown element type {}", static_cast<uint32_t>(type));
  // A string takes at least its length field.
  const uint64_t element_bytes = dtype ? static_cast<uint64_t>(info(*dtype).block_bytes) : sizeof(uint64_t);
  const uint64_t max_count = std::min(gguf::kMaxArrayCount, reader_.remaining() / element_bytes);
  if (count > max_count) bad("expected at most {} array elements in this file, got {}", max_count, count);
  if (dtype) return read_numbers(*dtype, count);
  GgufValue::Strings strings;  // grows as the strings turn out to be there
  for (uint64_t i = 0; i < count; ++i) strings.push_back(read_string());
  return {std::move(strings)};
}

GgufValue Parser::read_numbers(DType element, uint64_t count) {
  const auto bytes = reader_.take(count * static_cast<uint64_t>(info(element).block_bytes), "array");
  if (element == DType::kBool) {
    for (const std::byte b : bytes) {
      if (b > std::byte{1}) bad("expected bools of 0 or 1, got {}", static_cast<int>(b));
    }
  }
  return {GgufValue::Array{element, {bytes.begin(), bytes.end()}, static_cast<int64_t>(count)}};
}

std::string_view Parser::read_tensor_name(uint64_t index) {
  reader_.set_subject(fmt::format("tensor number {}", index));
  const auto length = reader_.read<uint64_t>("length of the name");
  if (length == 0 || length > gguf::kMaxNameBytes) {
    bad("expected a name of 1 to {} bytes, got {}", gguf::kMaxNameBytes, length);
  }
  const std::string_view text = reader_.text(length, "name");
  reader_.set_subject("tensor " + printable(text));
  if (text.find('\0') != std::string_view::npos) bad("NUL in the name");
  result_.names.push_back(std::make_unique<std::string>(text));
  const std::string_view name = *result_.names.back();
  if (!seen_names_.insert(name).second) bad("appears twice");
  return name;
}

// Outermost first: the file has them the other way round.
std::vector<int64_t> Parser::read_shape() {
  const auto rank = reader_.read<uint32_t>("number of dimensions");
  if (rank > gguf::kMaxRank) bad("expected at most {} dimensions, got {}", gguf::kMaxRank, rank);
  if (rank == 0) return {1};
  std::vector<int64_t> shape(rank);
  uint64_t values = 1;
  for (size_t i = 0; i < rank; ++i) {
    const auto dim = reader_.read<uint64_t>("dimension");
    if (dim == 0 || dim > INT64_MAX) bad("expected dimensions of at least 1 and below 2^63, got {}", dim);
    if (__builtin_mul_overflow(values, dim, &values) || values > INT64_MAX) {
      bad("the product of its dimensions is 2^63 or more");
    }
    shape[rank - 1 - i] = static_cast<int64_t>(dim);
  }
  return shape;
}

uint64_t Parser::tensor_bytes(DType type, std::span<const int64_t> shape) const {
  const DTypeInfo& t = info(type);
  if (shape.back() % t.block_values != 0) {
    bad("expected a row length that is a multiple of {} for type {}, got {}", t.block_values, t.name,
        shape.back());
  }
  auto bytes = static_cast<uint64_t>(t.block_bytes);
  auto overflow = __builtin_mul_overflow(bytes, static_cast<uint64_t>(shape.back() / t.block_values), &bytes);
  for (const int64_t dim : shape.first(shape.size() - 1)) {
    overflow |= __builtin_mul_overflow(bytes, static_cast<uint64_t>(dim), &bytes);
  }
  if (overflow || bytes > INT64_MAX)
    bad("{} of type {} takes 2^63 bytes or more", shape_string(shape), t.name);
  return bytes;
}

void Parser::read_tensor_info(uint64_t index) {
  const std::string_view name = read_tensor_name(index);
  const std::vector<int64_t> shape = read_shape();
  const auto id = reader_.read<uint32_t>("type");
  const auto type = dtype_from_ggml_id(id);
  if (!type) bad("type id {} is not supported", id);
  const uint64_t bytes = tensor_bytes(*type, shape);
  TensorRange range{name, reader_.read<uint64_t>("offset"), 0};
  if (range.begin % alignment_ != 0) {
    bad("expected an offset that is a multiple of {}, got {}", alignment_, range.begin);
  }
  if (add_overflows(range.begin, bytes, &range.end)) bad("offset {} is out of range", range.begin);
  result_.tensors.push_back(Tensor::contiguous(nullptr, *type, shape, name));
  ranges_.push_back(range);
}

void Parser::place_tensors() {
  reader_.set_subject({});
  if (ranges_.empty()) return;
  const uint64_t data_start = gguf::align_up(reader_.position(), alignment_);
  const uint64_t data_size = bytes_.size() - std::min<uint64_t>(data_start, bytes_.size());
  for (size_t i = 0; i < ranges_.size(); ++i) {
    if (ranges_[i].end > data_size) {
      bad("tensor {}: its bytes {} to {} are past the end of the data section of {} bytes; is the file "
          "complete?",
          printable(ranges_[i].name), ranges_[i].begin, ranges_[i].end, data_size);
    }
    const std::byte* data = bytes_.data() + data_start + ranges_[i].begin;
    result_.tensors[i].data = const_cast<std::byte*>(data);  // views are read-only by convention
  }
  check_no_overlap();
  warn_unless_contiguous();
}

void Parser::check_no_overlap() const {
  std::vector<TensorRange> sorted = ranges_;
  std::sort(sorted.begin(), sorted.end(),
            [](const TensorRange& a, const TensorRange& b) { return a.begin < b.begin; });
  for (size_t i = 1; i < sorted.size(); ++i) {
    if (sorted[i].begin < sorted[i - 1].end) {
      bad("tensors {} and {} overlap at offset {}", printable(sorted[i - 1].name), printable(sorted[i].name),
          sorted[i].begin);
    }
  }
}

void Parser::warn_unless_contiguous() const {
  uint64_t expected = 0;
  for (const TensorRange& range : ranges_) {
    if (range.begin != expected) {
      log_warning("{}: tensor {}: expected offset {}, got {}; other readers refuse such files", file_,
                  printable(range.name), expected, range.begin);
      return;
    }
    expected = gguf::align_up(range.end, alignment_);
  }
}

// Older files used other block layouts under the same type ids.
void check_quantization_version(const GgufMetadata& metadata, std::span<const Tensor> tensors,
                                const std::string& file) {
  const auto quantised =
      std::find_if(tensors.begin(), tensors.end(), [](const Tensor& t) { return is_block_type(t.type); });
  if (quantised == tensors.end()) return;
  const auto version = metadata.find_int(gguf::kQuantizationVersionKey);
  if (version != gguf::kQuantizationVersion) {
    bad_file("{}: key {}: expected {} because tensor {} is {}, got {}", file, gguf::kQuantizationVersionKey,
             gguf::kQuantizationVersion, printable(quantised->name), name(quantised->type),
             version ? std::to_string(*version) : "no such key");
  }
}

// PREFIX-00001-of-00003.gguf
struct SplitName {
  std::string prefix;
  int64_t number = 0;  // 1-based
  int64_t count = 0;

  std::string file(int64_t n) const { return fmt::format("{}-{:05d}-of-{:05d}.gguf", prefix, n, count); }
};

std::optional<int64_t> five_digits(std::string_view text) {
  int64_t n = 0;
  for (const char c : text.substr(0, 5)) {
    if (c < '0' || c > '9') return std::nullopt;
    n = n * 10 + (c - '0');
  }
  return n;
}

std::optional<SplitName> parse_split_name(const std::string& file_name) {
  constexpr std::string_view kPattern = "-00000-of-00000.gguf";
  if (file_name.size() <= kPattern.size()) return std::nullopt;
  const size_t start = file_name.size() - kPattern.size();
  const std::string_view suffix = std::string_view(file_name).substr(start);
  if (suffix[0] != '-' || suffix.substr(6, 4) != "-of-" || suffix.substr(15) != ".gguf") return std::nullopt;
  const auto number = five_digits(suffix.substr(1));
  const auto count = five_digits(suffix.substr(10));
  if (!number || !count) return std::nullopt;
  return SplitName{file_name.substr(0, start), *number, *count};
}

// Number of files of the set that starts with `path`; throws unless this is the first of them.
int64_t check_first_of_split(const std::filesystem::path& path, const GgufMetadata& metadata,
                             const std::optional<SplitName>& split_name) {
  const std::string file = path.string();
  if (split_name && split_name->number != 1) {
    bad_file("{}: this is file {} of {} of a split model; give the first, {}", file, split_name->number,
             split_name->count, split_name->file(1));
  }
  const int64_t index = metadata.find_int("split.no").value_or(0);
  // A merged file keeps the key with 0.
  const int64_t count = std::max<int64_t>(metadata.find_int("split.count").value_or(1), 1);
  if (index != 0) {
    bad_file("{}: key split.no: expected 0, got {}: this is file {} of {} of a split model{}", file, index,
             index + 1, count, split_name ? " under the name of the first" : "; give the first");
  }
  if (count > UINT16_MAX)
    bad_file("{}: key split.count: expected at most {}, got {}", file, UINT16_MAX, count);
  if (count > 1 && !split_name) {
    bad_file("{}: the first of {} files of a split model must be called NAME-00001-of-{:05d}.gguf", file,
             count, count);
  }
  if (split_name && split_name->count != count) {
    bad_file("{}: key split.count: expected {} as in the file's name, got {}", file, split_name->count,
             count);
  }
  return count;
}

void check_split_key(const GgufMetadata& metadata, const std::string& file, std::string_view key,
                     int64_t expected) {
  const auto value = metadata.find_int(key);
  if (value != expected) {
    bad_file("{}: key {}: expected {}, got {}", file, key, expected,
             value ? std::to_string(*value) : "no such key");
  }
}

template <typename T>
void append(std::vector<T>& to, std::vector<T> from) {
  to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
}

void check_names_unique(std::span<const Tensor> tensors, const std::string& file) {
  std::set<std::string_view> seen;
  for (const Tensor& t : tensors) {
    if (!seen.insert(t.name).second) {
      bad_file("{}: tensor {} appears in two files of the split model", file, printable(t.name));
    }
  }
}

}  // namespace

GgufFile GgufFile::parse(std::span<const std::byte> bytes, const std::string& file_name) {
  ParsedFile parsed = Parser(bytes, file_name).run();
  // Later files of a split have no model metadata.
  if (parsed.metadata.find_int("split.no").value_or(0) == 0) {
    check_quantization_version(parsed.metadata, parsed.tensors, file_name);
  }
  GgufFile file;
  file.metadata_ = std::move(parsed.metadata);
  file.tensors_ = std::move(parsed.tensors);
  file.names_ = std::move(parsed.names);
  return file;
}

GgufFile GgufFile::open(const std::filesystem::path& path) {
  const std::string first = path.string();
  const auto split_name = parse_split_name(path.filename().string());
  MappedFile mapped = MappedFile::open(path);
  GgufFile model = parse(mapped.bytes(), first);
  model.files_.push_back(std::move(mapped));
  const int64_t count = check_first_of_split(path, model.metadata_, split_name);
  if (count == 1) return model;

  for (int64_t n = 2; n <= count; ++n) {
    const std::filesystem::path shard_path = path.parent_path() / split_name->file(n);
    if (!is_file(shard_path)) {
      fail(Error::Kind::kNotFound, "{}: file {} of {} of the split model is missing: {}", first, n, count,
           shard_path.string());
    }
    MappedFile shard = MappedFile::open(shard_path);
    ParsedFile parsed = Parser(shard.bytes(), shard_path.string()).run();
    check_split_key(parsed.metadata, shard_path.string(), "split.no", n - 1);
    check_split_key(parsed.metadata, shard_path.string(), "split.count", count);
    append(model.tensors_, std::move(parsed.tensors));
    append(model.names_, std::move(parsed.names));
    model.files_.push_back(std::move(shard));
  }
  check_names_unique(model.tensors_, first);
  check_quantization_version(model.metadata_, model.tensors_, first);
  check_split_key(model.metadata_, first, "split.tensors.count", static_cast<int64_t>(model.tensors_.size()));
  return model;
}

int64_t GgufFile::data_bytes() const {
  int64_t sum = 0;
  for (const Tensor& t : tensors_) sum += t.bytes();
  return sum;
}

}  // namespace synod
