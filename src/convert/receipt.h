// The receipt beside a converted file: what went in, what was asked for, what came out.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "formats/checkpoint.h"

namespace synod {

struct ReceiptInput {
  std::string version;  // of the program
  std::string type;     // name of the mix
  std::vector<std::string> type_overrides;
  std::vector<std::pair<std::string, std::string>> options;  // everything else that was not the default
  std::string importance_file;                               // empty = none
  std::map<std::string, int64_t> n_tensors;                  // written, by stored type
  std::vector<std::string> warnings;
};

// The files a checkpoint consists of, in order of name: all of a split, or of a folder its tensors,
// configuration and tokenizer.
std::vector<std::filesystem::path> files_of(const Checkpoint& checkpoint);

// FILE.receipt.json beside the (first) output file.
std::filesystem::path receipt_path(const std::filesystem::path& output);

// Hashes inputs and outputs (SHA-256, as sha256sum prints it) with up to `n_threads` threads and writes the
// receipt: temporary name, fsync, rename. `on_read` is told of bytes hashed, and stops by returning false:
// then nothing is written and the result is false.
bool write_receipt(const std::vector<std::filesystem::path>& inputs,
                   const std::vector<std::filesystem::path>& outputs, const ReceiptInput& what, int n_threads,
                   const std::function<bool(int64_t bytes)>& on_read);

}  // namespace synod
