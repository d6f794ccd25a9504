// Pages as bytes: what a conversation file and a file of the disk tier contain.
//
//   magic, version | fingerprint | kind, counts, runs, token ids | page bytes | checksum of all before it
//
// Every number is checked against the cache's own geometry and the size of what is there before it is used; a
// damaged image is refused (kBadFile), never garbage. Numbers are little-endian.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "kv/kv_cache.h"

namespace synod {

using ByteSink = std::function<void(std::span<const std::byte>)>;

// What an image says about itself.
struct PageImage {
  uint64_t fingerprint = 0;  // of the model and backend that computed the rows
  uint64_t key = 0;          // free for the caller (a block's hash)
  int64_t length = 0;        // tokens up to the end of the pages
  int64_t floor = 0;         // KvCache::floor
  std::vector<int32_t> ids;
  // Sets of runs, each one per group: a sequence has one set, a block two (its pages, its state).
  std::vector<std::vector<PageRun>> sets;
};

// 64-bit checksum, streamed. Any split of the same bytes gives the same value.
class Checksum {
 public:
  void add(std::span<const std::byte> bytes);
  uint64_t value() const;

 private:
  uint64_t state_ = 0x6A09E667F3BCC908U;
  uint64_t pending_ = 0;  // bytes of an incomplete word
  uint64_t n_ = 0;
};

// Where the pages of an image lie, in order. Taken on the cache's thread; the pages must stay referenced.
std::vector<std::span<const std::byte>> page_bytes(const PageImage& image, const KvCache& cache);

// Writes the image. May run on another thread than the cache's, if nobody writes to the pages meanwhile.
void write_image(const PageImage& image, const CacheSpec& spec,
                 std::span<const std::span<const std::byte>> pages, const KvCache::Copy& copy,
                 const ByteSink& sink);

// Reads an image and allocates its pages in `cache`; the caller owns them. Throws kBadFile naming `what`,
// kNoMemory; then nothing is allocated. `vocab_size` bounds the ids.
PageImage read_image(std::span<const std::byte> bytes, uint64_t fingerprint, int64_t vocab_size,
                     KvCache& cache, const std::string& what);

// Throws kBadFile unless set 0 is all that a sequence of `image.length` tokens needs to go on.
void check_sequence(const PageImage& image, const CacheSpec& spec, const std::string& what);

}  // namespace synod
