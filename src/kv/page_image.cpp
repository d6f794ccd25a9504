#include "kv/page_image.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/error.h"
#include "kv/cache_geometry.h"

namespace synod {
namespace {

static_assert(std::endian::native == std::endian::little, "images are written as memory has them");

constexpr char kMagic[8] = {'S', 'Y', 'N', 'O', 'D', 'K', 'V', '\0'};
constexpr uint64_t kVersion = 1;
constexpr int64_t kMaxSets = 4;

uint64_t scramble(uint64_t state, uint64_t word) {
  state = (state ^ word) * 0x9E3779B97F4A7C15U;
  return state ^ (state >> 32);
}

class Writer {
 public:
  explicit Writer(const ByteSink& sink) : sink_(sink) {}
  void bytes(std::span<const std::byte> b) {
    sum_.add(b);
    sink_(b);
  }
  template <typename T>
  void number(T value) {
    bytes(std::as_bytes(std::span(&value, 1)));
  }
  void finish() {
    const uint64_t value = sum_.value();
    sink_(std::as_bytes(std::span(&value, 1)));
  }

 private:
  const ByteSink& sink_;
  Checksum sum_;
};

class Reader {
 public:
  Reader(std::span<const std::byte> bytes, const std::string& what) : rest_(bytes), what_(what) {}
  std::span<const std::byte> bytes(int64_t n) {
    if (n < 0 || n > static_cast<int64_t>(rest_.size())) {
      bad_file("{}: expected {} more bytes, got {}: the file is cut short", what_, n, rest_.size());
    }
    const auto part = rest_.first(static_cast<size_t>(n));
    rest_ = rest_.subspan(static_cast<size_t>(n));
    return part;
  }
  template <typename T>
  T number() {
    T value;
    std::memcpy(&value, bytes(sizeof(T)).data(), sizeof(T));
    return value;
  }
  size_t left() const { return rest_.size(); }

 private:
  std::span<const std::byte> rest_;
  const std::string& what_;
};

// First and last page a run of `group` may have in an image of `length` tokens.
void check_run(const RowGroup& group, int64_t first, int64_t n, int64_t length, const std::string& what) {
  const int64_t most = page_count(group, length);
  if (n < 0 || first < 0 || n > most || first > most - n) {
    bad_file("{}: {}: pages {} to {} of {}: damaged", what, group.name, first, first + n, most);
  }
}

}  // namespace

// Words of 8 bytes; an incomplete one waits in pending_.
void Checksum::add(std::span<const std::byte> bytes) {
  size_t i = 0;
  const auto byte = [&](std::byte b) {
    pending_ |= static_cast<uint64_t>(b) << (8 * (n_ % 8));
    if (++n_ % 8 == 0) {
      state_ = scramble(state_, pending_);
      pending_ = 0;
    }
  };
  while (i < bytes.size() && n_ % 8 != 0) byte(bytes[i++]);
  for (; i + 8 <= bytes.size(); i += 8, n_ += 8) {
    uint64_t word;
    std::memcpy(&word, bytes.data() + i, 8);
    state_ = scramble(state_, word);
  }
  while (i < bytes.size()) byte(bytes[i++]);
}

uint64_t Checksum::value() const { return scramble(scramble(state_, pending_), n_); }

std::vector<std::span<const std::byte>> page_bytes(const PageImage& image, const KvCache& cache) {
  std::vector<std::span<const std::byte>> pages;
  for (const auto& set : image.sets) {
    for (size_t g = 0; g < set.size(); ++g) {
      for (const PageId page : set[g].pages) pages.push_back(cache.data(static_cast<int>(g), page));
    }
  }
  return pages;
}

void write_image(const PageImage& image, const CacheSpec& spec,
                 std::span<const std::span<const std::byte>> pages, const KvCache::Copy& copy,
                 const ByteSink& sink) {
  Writer out(sink);
  out.bytes(std::as_bytes(std::span(kMagic)));
  out.number(kVersion);
  out.number(image.fingerprint);
  out.number(image.key);
  out.number(image.length);
  out.number(image.floor);
  out.number(static_cast<int64_t>(image.ids.size()));
  out.number(static_cast<int64_t>(spec.groups.size()));
  out.number(static_cast<int64_t>(image.sets.size()));
  for (const auto& set : image.sets) {
    SYNOD_ASSERT(set.size() == spec.groups.size());
    for (size_t g = 0; g < set.size(); ++g) {
      out.number(set[g].first);
      out.number(static_cast<int64_t>(set[g].pages.size()));
      out.number(spec.groups[g].page_bytes() * static_cast<int64_t>(spec.groups[g].layers.size()));
    }
  }
  out.bytes(std::as_bytes(std::span(image.ids)));
  std::vector<std::byte> host;
  for (const std::span<const std::byte> page : pages) {
    host.resize(page.size());
    copy(host.data(), page.data(), static_cast<int64_t>(page.size()));
    out.bytes(host);
  }
  out.finish();
}

PageImage read_image(std::span<const std::byte> bytes, uint64_t fingerprint, int64_t vocab_size,
                     KvCache& cache, const std::string& what) {
  const CacheSpec& spec = cache.spec();
  Reader in(bytes, what);
  if (std::memcmp(in.bytes(sizeof(kMagic)).data(), kMagic, sizeof(kMagic)) != 0) {
    bad_file("{}: expected a file of cache pages, got something else", what);
  }
  if (const auto version = in.number<uint64_t>(); version != kVersion) {
    bad_file("{}: expected version {}, got {}", what, kVersion, version);
  }
  PageImage image;
  image.fingerprint = in.number<uint64_t>();
  if (image.fingerprint != fingerprint) {
    bad_file("{}: was written by another model, backend or profile (fingerprint {:016x}, expected {:016x})",
             what, image.fingerprint, fingerprint);
  }
  if (bytes.size() < 8) bad_file("{}: cut short", what);
  Checksum sum;
  sum.add(bytes.first(bytes.size() - 8));
  uint64_t stored;
  std::memcpy(&stored, bytes.data() + bytes.size() - 8, 8);
  if (stored != sum.value()) bad_file("{}: the checksum does not match: damaged", what);

  image.key = in.number<uint64_t>();
  image.length = in.number<int64_t>();
  image.floor = in.number<int64_t>();
  const auto n_ids = in.number<int64_t>();
  const auto n_groups = in.number<int64_t>();
  const auto n_sets = in.number<int64_t>();
  constexpr int64_t kMaxTokens = int64_t{1} << 40;
  if (image.length < 0 || image.length > kMaxTokens || image.floor < 0 || image.floor > image.length ||
      n_ids < 0 || n_ids > image.length || n_groups != static_cast<int64_t>(spec.groups.size()) ||
      n_sets < 0 || n_sets > kMaxSets) {
    bad_file("{}: its header does not fit this model: damaged", what);
  }
  int64_t page_bytes_total = 0;
  for (int64_t s = 0; s < n_sets; ++s) {
    auto& set = image.sets.emplace_back(spec.groups.size());
    for (size_t g = 0; g < set.size(); ++g) {
      const RowGroup& group = spec.groups[g];
      set[g].first = in.number<int64_t>();
      const auto n = in.number<int64_t>();
      check_run(group, set[g].first, n, image.length, what);
      const int64_t own = group.page_bytes() * static_cast<int64_t>(group.layers.size());
      if (in.number<int64_t>() != own) bad_file("{}: {}: pages of another size", what, group.name);
      if (n > static_cast<int64_t>(in.left()) / own) bad_file("{}: cut short", what);
      page_bytes_total += n * own;
      set[g].pages.resize(static_cast<size_t>(n));  // ids come below
    }
  }
  const auto ids = in.bytes(n_ids * static_cast<int64_t>(sizeof(int32_t)));
  image.ids.resize(static_cast<size_t>(n_ids));
  if (!ids.empty()) std::memcpy(image.ids.data(), ids.data(), ids.size());
  for (const int32_t id : image.ids) {
    if (id < 0 || id >= vocab_size) bad_file("{}: token id {} is outside the vocabulary", what, id);
  }
  if (static_cast<int64_t>(in.left()) != page_bytes_total + 8) {
    bad_file("{}: expected {} bytes of pages, got {}", what, page_bytes_total,
             static_cast<int64_t>(in.left()) - 8);
  }
  std::vector<std::pair<int, PageRun>> taken;  // to give back when memory ends
  try {
    for (auto& set : image.sets) {
      for (size_t g = 0; g < set.size(); ++g) {
        const auto n = static_cast<int64_t>(set[g].pages.size());
        set[g].pages.clear();
        if (n == 0) continue;
        set[g] = cache.allocate(static_cast<int>(g), set[g].first, n);
        taken.emplace_back(static_cast<int>(g), set[g]);
        for (const PageId page : set[g].pages) {
          const auto size = static_cast<int64_t>(cache.data(static_cast<int>(g), page).size());
          cache.copy_in(static_cast<int>(g), page, in.bytes(size));
        }
      }
    }
  } catch (...) {
    for (auto& [group, run] : taken) cache.drop(group, run);
    throw;
  }
  return image;
}

// A sequence that was resumed at a page boundary (its floor) has of each windowed group only what the
// boundary keeps; later rows are all there.
void check_sequence(const PageImage& image, const CacheSpec& spec, const std::string& what) {
  const int64_t n = image.length;
  if (image.sets.size() != 1 || static_cast<int64_t>(image.ids.size()) != n || n == 0 ||
      image.floor % kPageTokens != 0) {
    bad_file("{}: expected the pages of one conversation: damaged", what);
  }
  for (size_t g = 0; g < spec.groups.size(); ++g) {
    const RowGroup& group = spec.groups[g];
    const PageRun& run = image.sets[0][g];
    int64_t first = 0;  // page that must be there
    if (group.window > 0) {
      const int64_t kept = image.floor / group.tokens_per_row - group.boundary_rows;
      first = std::max(first_row_read(group, n), kept) / group.rows_per_page;
    }
    const int64_t end = page_count(group, n);
    const bool nothing_read = first >= end;
    if (!nothing_read && (run.pages.empty() || run.first > first || run.end() != end)) {
      bad_file("{}: {}: pages {} to {} are missing or damaged", what, group.name, first, end);
    }
  }
}

}  // namespace synod
