// GGUF version 3 writer. The header is complete before the first data byte, so tensors are declared first.
#include <cstring>
#include <set>

#include "base/error.h"
#include "formats/atomic_file.h"
#include "formats/byte_reader.h"
#include "formats/gguf.h"
#include "formats/gguf_format.h"

namespace synod {
namespace {

struct Declared {
  std::string name;
  DType type;
  std::vector<int64_t> shape;  // outermost first
  int64_t bytes;
};

class HeaderWriter {
 public:
  template <typename T>
  void number(T value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(T));
  }
  void raw(std::string_view text) { bytes_ += text; }
  void string(std::string_view text) {
    number(static_cast<uint64_t>(text.size()));
    raw(text);
  }
  void value(const GgufValue& v) {
    number(static_cast<uint32_t>(gguf::value_type(v)));
    std::visit([this](const auto& x) { payload(x); }, v.value);
  }

  const std::string& bytes() const { return bytes_; }

 private:
  template <typename T>
  void payload(const T& scalar) {
    number(scalar);
  }
  void payload(bool b) { number(static_cast<uint8_t>(b)); }
  void payload(const std::string& text) { string(text); }
  void payload(const GgufValue::Array& array) {
    const auto type = gguf::value_type(array.element);
    SYNOD_ASSERT(type && static_cast<int64_t>(array.bytes.size()) == row_bytes(array.element, array.count));
    number(static_cast<uint32_t>(*type));
    number(static_cast<uint64_t>(array.count));
    bytes_.append(reinterpret_cast<const char*>(array.bytes.data()), array.bytes.size());
  }
  void payload(const GgufValue::Strings& strings) {
    number(static_cast<uint32_t>(gguf::ValueType::kString));
    number(static_cast<uint64_t>(strings.size()));
    for (const std::string& s : strings) string(s);
  }

  std::string bytes_;
};

}  // namespace

struct GgufWriter::Impl {
  explicit Impl(std::filesystem::path path) : file(std::move(path)) {}

  template <typename... Args>
  [[noreturn]] void failed(fmt::format_string<Args...> format, Args&&... args) const {
    fail(Error::Kind::kFailure, "{}: {}", file.target().string(),
         fmt::format(format, std::forward<Args>(args)...));
  }

  void write_header(GgufMetadata& metadata);
  void finish_tensor();

  AtomicFile file;
  std::vector<Declared> tensors;
  std::set<std::string> names;
  uint64_t alignment = 0;
  bool header_written = false;
  size_t current = 0;           // tensor being written
  int64_t current_written = 0;  // bytes of it so far
};

void GgufWriter::Impl::write_header(GgufMetadata& metadata) {
  header_written = true;
  for (const Declared& t : tensors) {
    if (is_block_type(t.type)) {
      metadata.set_u32(std::string(gguf::kQuantizationVersionKey), gguf::kQuantizationVersion);
      break;
    }
  }
  alignment = gguf::alignment(metadata, file.target().string());
  HeaderWriter out;
  out.raw(gguf::kMagic);
  out.number(gguf::kVersion);
  out.number(static_cast<uint64_t>(tensors.size()));
  out.number(static_cast<uint64_t>(metadata.entries().size()));
  for (const auto& [key, value] : metadata.entries()) {
    if (const auto problem = gguf::key_problem(key)) failed("key {}: {}", printable(key), *problem);
    out.string(key);
    out.value(value);
  }
  uint64_t offset = 0;
  for (const Declared& t : tensors) {
    out.string(t.name);
    out.number(static_cast<uint32_t>(t.shape.size()));
    for (auto dim = t.shape.rbegin(); dim != t.shape.rend(); ++dim) out.number(static_cast<uint64_t>(*dim));
    out.number(static_cast<uint32_t>(info(t.type).ggml_id));
    out.number(offset);
    offset += gguf::align_up(static_cast<uint64_t>(t.bytes), alignment);
  }
  file.write(out.bytes());
  if (!tensors.empty()) {
    const uint64_t size = out.bytes().size();
    file.write_zeros(static_cast<int64_t>(gguf::align_up(size, alignment) - size));
  }
}

void GgufWriter::Impl::finish_tensor() {
  const auto bytes = static_cast<uint64_t>(tensors[current].bytes);
  file.write_zeros(static_cast<int64_t>(gguf::align_up(bytes, alignment) - bytes));
  ++current;
  current_written = 0;
}

GgufWriter::GgufWriter(std::filesystem::path path)
    : metadata_(path.string()), impl_(std::make_unique<Impl>(std::move(path))) {}
GgufWriter::~GgufWriter() = default;

void GgufWriter::declare(std::string name, DType type, std::vector<int64_t> shape) {
  Impl& w = *impl_;
  SYNOD_ASSERT(!w.header_written);
  if (name.empty() || name.size() > gguf::kMaxNameBytes || name.find('\0') != std::string::npos) {
    w.failed("tensor {}: expected a name of 1 to {} bytes, got {}", printable(name), gguf::kMaxNameBytes,
             name.size());
  }
  if (!w.names.insert(name).second) w.failed("tensor {} is declared twice", name);
  const DTypeInfo& t = info(type);
  if (t.ggml_id < 0) w.failed("tensor {}: GGUF cannot hold type {}", name, t.name);
  if (shape.empty() || shape.size() > gguf::kMaxRank) {
    w.failed("tensor {}: expected 1 to {} dimensions, got {}", name, gguf::kMaxRank, shape.size());
  }
  int64_t bytes = t.block_bytes;
  bool fits = shape.back() % t.block_values == 0 &&
              !__builtin_mul_overflow(bytes, shape.back() / t.block_values, &bytes);
  for (size_t i = 0; i + 1 < shape.size(); ++i)
    fits = fits && !__builtin_mul_overflow(bytes, shape[i], &bytes);
  for (const int64_t dim : shape) fits = fits && dim > 0;
  if (!fits) w.failed("tensor {}: type {} cannot have shape {}", name, t.name, shape_string(shape));
  w.tensors.push_back({std::move(name), type, std::move(shape), bytes});
}

void GgufWriter::write(std::span<const std::byte> bytes) {
  Impl& w = *impl_;
  if (!w.header_written) w.write_header(metadata_);
  if (bytes.empty()) return;
  if (w.current == w.tensors.size()) w.failed("{} bytes more than the declared tensors hold", bytes.size());
  const Declared& t = w.tensors[w.current];
  const auto size = static_cast<int64_t>(bytes.size());
  if (size > t.bytes - w.current_written) {
    w.failed("tensor {}: expected {} bytes, got {}", t.name, t.bytes, w.current_written + size);
  }
  w.file.write(bytes);
  w.current_written += size;
  if (w.current_written == t.bytes) w.finish_tensor();
}

void GgufWriter::finish() {
  Impl& w = *impl_;
  if (!w.header_written) w.write_header(metadata_);
  if (w.current != w.tensors.size()) {
    const Declared& t = w.tensors[w.current];
    w.failed("tensor {}: expected {} bytes, got {}", t.name, t.bytes, w.current_written);
  }
  w.file.commit();
}

}  // namespace synod
