// The host side of the CUDA backend, on any machine: layouts, the upload ring over a device in host memory,
// the collection of weights, and what the loader says.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "cuda/file_reader.h"
#include "cuda/loader.h"
#include "cuda/uploader.h"
#include "cuda/weight_layout.h"
#include "cuda/weight_set.h"
#include "engine/dry_steps.h"
#include "formats/checkpoint.h"
#include "host_device.h"
#include "ops/operands.h"

namespace synod {
namespace {

namespace fs = std::filesystem;

using testing::HostDevice;

TEST(CudaLayout, PlanesTakeTheBytesOfTheBlocks) {
  for (int i = 0; i <= static_cast<int>(DType::kQ2_0); ++i) {
    const auto type = static_cast<DType>(i);
    if (!is_block_type(type)) continue;
    Matrix m{.storage = Storage::kBlock, .type = type, .n_out = 64, .n_in = 2 * info(type).block_values};
    m.row_stride = row_bytes(type, m.n_in);
    const cuda::WeightLayout layout = cuda::layout_of(m);
    int64_t bytes = 0;
    for (int p = 0; p < layout.n_planes; ++p) bytes += layout.planes[static_cast<size_t>(p)].stride;
    EXPECT_GE(bytes, m.code_bytes()) << name(type);
    EXPECT_LT(bytes, m.code_bytes() + 16) << name(type);
    if (!layout.planar()) continue;
    // Every byte of a block lies in exactly one plane.
    std::vector<int> owners(static_cast<size_t>(layout.block_bytes));
    for (int p = 0; p < layout.n_planes; ++p) {
      const cuda::PlaneLayout& plane = layout.planes[static_cast<size_t>(p)];
      for (int b = plane.offset; b < plane.offset + plane.bytes; ++b) ++owners[static_cast<size_t>(b)];
    }
    for (const int n : owners) EXPECT_EQ(n, 1) << name(type);
    alignas(256) static std::byte base[1 << 20];
    const cuda::DeviceMatrix d = cuda::describe(m, layout, m.n_out, base);
    for (int p = 0; p < layout.n_planes; ++p) EXPECT_EQ((d.plane[p] - d.plane[0]) % cuda::kPlaneAlign, 0);
  }
}

TEST(CudaUpload, ManyPiecesArriveInOrderThroughAFewBuffers) {
  HostDevice device;
  {
    constexpr int64_t kBytes = 1000, kPieces = 5 * cuda::Uploader::kBuffers + 3;
    cuda::Uploader uploader(device, 3, kBytes);
    std::vector<cuda::Piece> pieces;
    std::vector<int> placed;
    for (int64_t i = 0; i < kPieces; ++i) {
      pieces.push_back(
          {.bytes = kBytes - i,
           .read =
               [i](std::byte* to) { std::memset(to, static_cast<int>(i), static_cast<size_t>(kBytes - i)); },
           .place =
               [&placed, i](std::byte* staged) {
                 EXPECT_EQ(std::to_integer<int64_t>(staged[kBytes - i - 1]), i);
                 placed.push_back(static_cast<int>(i));
               }});
    }
    int64_t done = 0;
    uploader.run(pieces, [&](int64_t bytes) { done = bytes; });
    EXPECT_EQ(placed.size(), static_cast<size_t>(kPieces));
    EXPECT_TRUE(std::is_sorted(placed.begin(), placed.end()));
    EXPECT_EQ(done, kPieces * kBytes - kPieces * (kPieces - 1) / 2);
  }
  EXPECT_EQ(device.live(), 0);
}

TEST(CudaUpload, AFailedReadEndsTheUploadWithItsError) {
  HostDevice device;
  cuda::Uploader uploader(device, 4, 64);
  std::vector<cuda::Piece> pieces;
  for (int i = 0; i < 100; ++i) {
    pieces.push_back({.bytes = 64,
                      .read =
                          [i](std::byte* to) {
                            if (i == 37) fail(Error::Kind::kBadFile, "piece 37");
                            std::memset(to, 0, 64);
                          },
                      .place = [](std::byte*) {}});
  }
  try {
    uploader.run(pieces);
    FAIL() << "expected an error";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "piece 37");
  }
}

TEST(CudaUpload, MappedFilesAreReadWithoutTheirMapping) {
  const fs::path path = fs::temp_directory_path() / "synod_cuda_reader";
  std::vector<char> bytes(3 << 20);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 31 >> 3);
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  const MappedFile file = MappedFile::open(path);
  const cuda::FileReader reader;
  EXPECT_GE(reader.n_files(), 1);
  std::vector<std::byte> copy(100000);
  reader.read(file.bytes().data() + 777777, 100000, copy.data());
  EXPECT_EQ(std::memcmp(copy.data(), bytes.data() + 777777, copy.size()), 0);
  fs::remove(path);
}

TEST(CudaWeights, ADryForwardFindsWhatAModelReads) {
  for (const char* file : {"gemma4-mini-q8_0.gguf", "deepseek4-mini-q8_0.gguf"}) {
    const Checkpoint checkpoint = Checkpoint::open(fs::path(SYNOD_SOURCE_DIR) / "models" / file);
    const auto model = load_model(checkpoint, {});
    cuda::WeightCollector collector;
    dry_steps(*model, collector);
    int64_t bytes = 0;
    for (const auto& entry : collector.weights().matrices) {
      for (const Matrix& m : entry.all()) bytes += m.bytes();
    }
    int64_t constants = 0;
    for (const Tensor& t : collector.weights().constants) constants += t.bytes();
    // All of it, and little else: norms may be stored narrower than f32, frequencies are computed.
    EXPECT_GE(bytes + constants, model->weights().bytes() * 99 / 100) << file;
    EXPECT_LE(bytes, model->weights().bytes() * 101 / 100) << file;
  }
}

TEST(CudaLoader, SaysWhatIsWrong) {
  const std::vector<fs::path> nowhere = {"/nonexistent/libsynod_cuda.so"};
  try {
    cuda::load_backend(nowhere);
    FAIL() << "expected an error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::kNotFound);
    EXPECT_NE(std::string(error.what()).find("cmake --preset cuda"), std::string::npos);
  }
  const fs::path damaged = fs::temp_directory_path() / "libsynod_cuda_damaged.so";
  std::ofstream(damaged) << "no library";
  try {
    cuda::load_backend(std::vector<fs::path>{damaged});
    FAIL() << "expected an error";
  } catch (const Error& error) {
    EXPECT_EQ(exit_code(error.kind()), 4);
  }
  fs::remove(damaged);

  EXPECT_FALSE(cuda::plugin_mismatch(nullptr).empty());
  cuda::PluginApi api{.build = cuda::plugin_build(),
                      .create = [](char*, size_t) -> cuda::DeviceBackend* { return nullptr; }};
  EXPECT_TRUE(cuda::plugin_mismatch(&api).empty());
  api.build = "0.0 other";
  EXPECT_NE(cuda::plugin_mismatch(&api).find("0.0 other"), std::string::npos);
  api.build = cuda::plugin_build();
  api.version = cuda::kPluginVersion + 1;
  EXPECT_NE(cuda::plugin_mismatch(&api).find("interface version"), std::string::npos);
}

}  // namespace
}  // namespace synod
