// safetensors writer for results and test data: names sorted, data in the same order, header padded to 8.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "formats/atomic_file.h"
#include "formats/byte_reader.h"
#include "formats/safetensors.h"
#include "formats/safetensors_header.h"

namespace synod {
namespace {

std::string header_entry(const Tensor& t, int64_t offset, const std::string& file) {
  const auto dtype = safetensors_dtype(t.type);
  if (!dtype) {
    fail(Error::Kind::kFailure, "{}: tensor {}: safetensors cannot hold type {}", file, printable(t.name),
         name(t.type));
  }
  std::string quoted;
  try {
    quoted = nlohmann::json(std::string(t.name)).dump();
  } catch (const nlohmann::json::exception&) {
    fail(Error::Kind::kFailure, "{}: tensor {}: its name is not UTF-8", file, printable(t.name));
  }
  return fmt::format("{}:{{\"dtype\":\"{}\",\"shape\":{},\"data_offsets\":[{},{}]}}", quoted, *dtype,
                     shape_string(t), offset, offset + t.bytes());
}

std::string header_of(std::span<const Tensor> sorted, const std::string& file) {
  std::string header = "{";
  int64_t offset = 0;
  for (const Tensor& t : sorted) {
    if (header.size() > 1) header += ",";
    header += header_entry(t, offset, file);
    offset += t.bytes();
  }
  header += "}";
  header.append((8 - header.size() % 8) % 8, ' ');
  return header;
}

}  // namespace

void write_safetensors(const std::filesystem::path& path, std::span<const Tensor> tensors) {
  std::vector<Tensor> sorted(tensors.begin(), tensors.end());
  std::sort(sorted.begin(), sorted.end(), [](const Tensor& a, const Tensor& b) { return a.name < b.name; });
  for (size_t i = 0; i < sorted.size(); ++i) {
    SYNOD_ASSERT(sorted[i].rank > 0 && sorted[i].is_contiguous());
    if (sorted[i].name == "__metadata__" || (i > 0 && sorted[i].name == sorted[i - 1].name)) {
      fail(Error::Kind::kFailure, "{}: tensor name {} is reserved or used twice", path.string(),
           printable(sorted[i].name));
    }
  }
  const std::string header = header_of(sorted, path.string());
  AtomicFile file(path);
  const uint64_t length = header.size();
  file.write(std::as_bytes(std::span(&length, 1)));
  file.write(header);
  for (const Tensor& t : sorted) file.write(std::span(t.data, static_cast<size_t>(t.bytes())));
  file.commit();
}

}  // namespace synod
