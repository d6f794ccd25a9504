// Made-up checkpoints in a temporary folder.
#pragma once

#include <unistd.h>

#include <cstring>
#include <deque>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "base/half.h"
#include "formats/checkpoint.h"
#include "formats/safetensors.h"
#include "temp_folder.h"

namespace synod {

using test::TempFolder;

class CheckpointBuilder {
 public:
  explicit CheckpointBuilder(std::string config = R"({"model_type": "toy"})") : config_(std::move(config)) {}

  using Shape = std::vector<int64_t>;

  void add_bytes(const std::string& name, DType type, const Shape& shape, std::vector<uint8_t> bytes) {
    remove(name);
    stored_.push_back({name, type, shape, std::move(bytes)});
  }

  template <typename T>
  void add(const std::string& name, DType type, const Shape& shape, const std::vector<T>& values) {
    std::vector<uint8_t> bytes(values.size() * sizeof(T));
    std::memcpy(bytes.data(), values.data(), bytes.size());
    add_bytes(name, type, shape, std::move(bytes));
  }

  void add_f32(const std::string& name, const Shape& shape, const std::vector<float>& values) {
    add(name, DType::kF32, shape, values);
  }

  void add_bf16(const std::string& name, const Shape& shape, const std::vector<float>& values) {
    std::vector<uint16_t> bits;
    for (const float value : values) bits.push_back(f32_to_bf16(value));
    add(name, DType::kBF16, shape, bits);
  }

  // f32 values 0.25 * k, distinct between names.
  std::vector<float> add_numbers(const std::string& name, const Shape& shape) {
    int64_t n = 1;
    for (const int64_t d : shape) n *= d;
    std::vector<float> values(static_cast<size_t>(n));
    for (float& value : values) value = 0.25F * static_cast<float>(static_cast<int>(random_() % 2001) - 1000);
    add_f32(name, shape, values);
    return values;
  }

  std::vector<uint8_t> random_bytes(size_t n, int low = 0, int high = 255) {
    std::vector<uint8_t> bytes(n);
    for (uint8_t& byte : bytes)
      byte = static_cast<uint8_t>(low + static_cast<int>(random_() % uint32_t(high - low + 1)));
    return bytes;
  }

  void remove(const std::string& name) {
    std::erase_if(stored_, [&](const Stored& s) { return s.name == name; });
  }

  // The folder must outlive the checkpoint's last reader only while opening: files stay mapped.
  Checkpoint open() {
    folders_.emplace_back();
    const TempFolder& folder = folders_.back();
    std::vector<Tensor> tensors;
    for (Stored& s : stored_) tensors.push_back(Tensor::contiguous(s.bytes.data(), s.type, s.shape, s.name));
    write_safetensors(folder.path() / "model.safetensors", tensors);
    folder.write("config.json", config_);
    return Checkpoint::open(folder.path());
  }

 private:
  struct Stored {
    std::string name;
    DType type;
    Shape shape;
    std::vector<uint8_t> bytes;
  };

  std::string config_;
  std::vector<Stored> stored_;
  std::deque<TempFolder> folders_;
  std::mt19937 random_{7};
};

}  // namespace synod
