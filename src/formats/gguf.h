// GGUF version 2 and 3: hardened reader (single and split files) and streaming writer.
// Layout and limits: the file is hostile until checked; every length, count, offset and product is compared
// with what is left of the file before it is used or allocated. Errors are kBadFile and name file and key or
// tensor, what was expected and what came.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/buffer.h"
#include "base/tensor.h"

namespace synod {

// A metadata value. Arrays of numbers keep their element type; bool arrays are vector<uint8_t> of kBool.
struct GgufValue {
  using Strings = std::vector<std::string>;
  struct Array {
    DType element;                 // kU8 ... kF64, kBool
    std::vector<std::byte> bytes;  // little-endian elements, contiguous
    int64_t count = 0;
  };
  std::variant<uint8_t, int8_t, uint16_t, int16_t, uint32_t, int32_t, float, bool, std::string, uint64_t,
               int64_t, double, Array, Strings>
      value;

  bool is_array() const;
  bool is_string() const { return std::holds_alternative<std::string>(value); }
};

// Metadata in file order with typed getters. Integer getters accept any integer width in range, float getters
// f32 and f64 (and integers); a wrong type is kBadFile naming the key.
class GgufMetadata {
 public:
  explicit GgufMetadata(std::string file = {}) : file_(std::move(file)) {}

  bool has(std::string_view key) const { return find(key) != nullptr; }
  const GgufValue* find(std::string_view key) const;
  // `get_*` throw when the key is missing; `find_*` return nullopt.
  int64_t get_int(std::string_view key) const;
  double get_float(std::string_view key) const;
  std::string get_string(std::string_view key) const;
  std::optional<int64_t> find_int(std::string_view key) const;
  std::optional<double> find_float(std::string_view key) const;
  std::optional<bool> find_bool(std::string_view key) const;
  std::optional<std::string> find_string(std::string_view key) const;
  // A scalar reads as an array of one.
  std::optional<std::vector<int64_t>> find_ints(std::string_view key) const;
  std::optional<std::vector<double>> find_floats(std::string_view key) const;
  std::optional<std::vector<bool>> find_bools(std::string_view key) const;
  std::optional<std::vector<std::string>> find_strings(std::string_view key) const;

  void set(std::string key, GgufValue value);  // replaces, else appends
  void set_u32(std::string key, uint32_t v) { set(std::move(key), {v}); }
  void set_f32(std::string key, float v) { set(std::move(key), {v}); }
  void set_bool(std::string key, bool v) { set(std::move(key), {v}); }
  void set_string(std::string key, std::string v) { set(std::move(key), {std::move(v)}); }
  void set_strings(std::string key, std::vector<std::string> v) { set(std::move(key), {std::move(v)}); }
  void set_u32s(std::string key, const std::vector<uint32_t>& v);
  void set_i32s(std::string key, const std::vector<int32_t>& v);
  void set_f32s(std::string key, const std::vector<float>& v);
  void set_bools(std::string key, const std::vector<bool>& v);

  const std::vector<std::pair<std::string, GgufValue>>& entries() const { return entries_; }

 private:
  std::string file_;  // for messages
  std::vector<std::pair<std::string, GgufValue>> entries_;
  std::map<std::string, size_t, std::less<>> index_;
};

// An open GGUF model: one file, or all files of a split (give the first). Tensors view the mapped bytes.
class GgufFile {
 public:
  static GgufFile open(const std::filesystem::path& path);
  // Parses one file held in memory (fuzzing, tests). `bytes` must outlive the result.
  static GgufFile parse(std::span<const std::byte> bytes, const std::string& file_name);

  const GgufMetadata& metadata() const { return metadata_; }
  // In file order. Shapes are outermost first (reversed from the file's); names are owned by this object.
  const std::vector<Tensor>& tensors() const { return tensors_; }
  int64_t data_bytes() const;  // sum of tensor bytes

 private:
  GgufMetadata metadata_;
  std::vector<Tensor> tensors_;
  std::vector<std::unique_ptr<std::string>> names_;
  std::vector<MappedFile> files_;
};

// Writes a GGUF file: declare all tensors, then stream their bytes in the same order. The bytes go to a
// temporary name beside the target and are fsynced and renamed by finish(); destroying an unfinished writer
// removes the temporary file, so a half-written model never has the target's name.
class GgufWriter {
 public:
  explicit GgufWriter(std::filesystem::path path);
  ~GgufWriter();
  GgufWriter(const GgufWriter&) = delete;
  GgufWriter& operator=(const GgufWriter&) = delete;

  GgufMetadata& metadata() { return metadata_; }
  void declare(std::string name, DType type, std::vector<int64_t> shape);  // outermost first
  void write(std::span<const std::byte> bytes);  // next bytes of the current tensor; writes the header first
  void finish();                                 // all declared bytes must have been written

 private:
  struct Impl;
  GgufMetadata metadata_;
  std::unique_ptr<Impl> impl_;
};

}  // namespace synod
