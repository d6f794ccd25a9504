// The HTTP server: binds first, so that an address in use is known at once and /health can say that the model
// is loading; then loads; then waits for a signal and drains.
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/log.h"
#include "cli/served_model.h"
#include "cli/verbs.h"
#include "server/engine_generator.h"

namespace synod::cli {
namespace {

std::chrono::milliseconds from_seconds(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1e3));
}

// Every connection is a descriptor; the usual soft limit of 1024 is far below the hard one.
int64_t raise_file_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return 1024;
  constexpr rlim_t kEnough = 65536;
  const rlim_t wanted = std::min(limit.rlim_max, kEnough);
  if (limit.rlim_cur < wanted) {
    limit.rlim_cur = wanted;
    ::setrlimit(RLIMIT_NOFILE, &limit);
    ::getrlimit(RLIMIT_NOFILE, &limit);
  }
  return static_cast<int64_t>(std::min(limit.rlim_cur, kEnough));
}

// Tells systemd (Type=notify); does nothing elsewhere.
void notify_service_manager(const char* state) {
  const char* path = std::getenv("NOTIFY_SOCKET");
  if (path == nullptr || (path[0] != '/' && path[0] != '@')) return;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const size_t length = std::strlen(path);
  if (length >= sizeof(address.sun_path)) return;
  std::memcpy(address.sun_path, path, length);
  if (path[0] == '@') address.sun_path[0] = '\0';
  const int fd = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return;
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + length);
  static_cast<void>(
      ::sendto(fd, state, std::strlen(state), 0, reinterpret_cast<const sockaddr*>(&address), size));
  ::close(fd);
}

std::vector<std::string> api_keys(const Options& options) {
  std::vector<std::string> keys = options.api_keys;
  if (!options.api_key_file.empty()) {
    for (std::string& key : server::read_key_file(options.api_key_file)) keys.push_back(std::move(key));
  }
  for (const std::string& key : keys) {
    if (key.empty()) fail(Error::Kind::kUsage, "--api-key: expected a key, got an empty string");
  }
  return keys;
}

server::HttpOptions http_options(const Options& options, int64_t file_limit) {
  server::HttpOptions http;
  http.host = options.host;
  http.port = static_cast<uint16_t>(options.port);
  http.tls_certificate_file = options.tls_certificate;
  http.tls_key_file = options.tls_key;
  http.max_body_bytes = options.max_body_mib << 20;
  http.max_bodies_bytes = std::max(http.max_bodies_bytes, 4 * http.max_body_bytes);
  // A stream that nobody reads still takes a sequence's place; it must not keep it for long.
  http.max_unsent_bytes = int64_t{1} << 20;
  http.write_timeout = std::chrono::seconds(30);
  constexpr int64_t kReservedFiles = 64;
  http.max_connections =
      std::max<int64_t>(16, std::min(options.max_connections, file_limit - kReservedFiles));
  http.n_workers = options.http_threads > 0
                       ? static_cast<int>(options.http_threads)
                       : static_cast<int>(std::max(2U, std::thread::hardware_concurrency() / 2));
  return http;
}

}  // namespace

int serve_verb(const Options& options) {
  const std::vector<std::string> keys = api_keys(options);
  if (keys.empty() && !options.insecure && !server::is_loopback(options.host)) {
    fail(Error::Kind::kUsage,
         "--host {}: everyone who reaches this address could use the server; set --api-key-file, or "
         "--insecure if that is meant",
         options.host);
  }
  server::ApiOptions api_options;
  api_options.keys = keys;
  api_options.cors_origins = options.cors_origins;
  api_options.slots = !options.no_slots;
  api_options.slot_save_path = options.slot_save_path;
  if (!options.slot_save_path.empty() && !std::filesystem::is_directory(options.slot_save_path)) {
    fail(Error::Kind::kNotFound, "--slot-save-path {}: there is no such folder", options.slot_save_path);
  }
  api_options.props = !options.no_props;
  api_options.metrics = !options.no_metrics;
  api_options.ping_interval = from_seconds(options.ping_seconds);
  api_options.request_timeout = from_seconds(options.request_seconds);
  api_options.log_json = options.log_format == "json";
  api_options.version = SYNOD_VERSION;
  server::Api api(std::move(api_options));
  server::HttpServer http(http_options(options, raise_file_limit()), api.handlers());
  api.set_connection_counter([&http] { return http.n_connections(); });
  http.start();

  const std::unique_ptr<EngineBundle> bundle = load_engine(options);
  server::EngineGenerator generator(*bundle->engine);
  server::ServedModel model = served_model(*bundle, options);
  const std::string id = model.id;
  const int64_t context = model.context_length;
  api.attach(std::move(model), generator);
  log_info("{} on {}, {} tokens of context, {} sequences; ready after {:.1f} s", id, http.url(), context,
           bundle->engine->options().max_sequences, bundle->load_seconds);
  if (options.json) {
    const nlohmann::ordered_json ready = {{"schema_version", 1},
                                          {"url", http.url()},
                                          {"port", http.port()},
                                          {"model", id},
                                          {"context_length", context}};
    std::printf("%s\n", ready.dump().c_str());
    std::fflush(stdout);
  }
  notify_service_manager("READY=1");

  while (g_signal == 0) std::this_thread::sleep_for(std::chrono::milliseconds(20));

  notify_service_manager("STOPPING=1");
  log_info("draining: no new requests, running ones finish within {:.0f} s", options.drain_seconds);
  api.set_draining();
  if (!http.drain(from_seconds(options.drain_seconds))) {
    log_warning("unfinished requests are cut off");
    bundle->engine->stop();  // they fail, and say so
    http.drain(std::chrono::milliseconds(500));
  }
  bundle->engine->stop();
  api.stop();
  return 128 + g_signal;
}

}  // namespace synod::cli
