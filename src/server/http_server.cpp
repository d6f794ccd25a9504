// The listening side: sockets, the I/O thread, the workers, draining.
#include <boost/asio.hpp>
#include <future>
#include <thread>
#include <unordered_map>

#include "base/log.h"
#include "server/http_stream.h"

namespace synod::server {
namespace {

std::vector<Tcp::endpoint> resolve(asio::io_context& io, const std::string& host, uint16_t port) {
  Tcp::resolver resolver(io);
  ErrorCode error;
  const auto found = resolver.resolve(host, std::to_string(port), Tcp::resolver::passive, error);
  std::vector<Tcp::endpoint> endpoints;
  for (const auto& entry : found) {
    if (std::find(endpoints.begin(), endpoints.end(), entry.endpoint()) == endpoints.end()) {
      endpoints.push_back(entry.endpoint());
    }
  }
  if (error || endpoints.empty()) {
    fail(Error::Kind::kUsage, "host \"{}\": expected a name or address of this machine, got none ({})", host,
         error ? error.message() : "no address");
  }
  return endpoints;
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace

std::string_view HttpRequest::header(std::string_view name) const {
  for (const auto& [key, value] : headers) {
    if (key == name) return value;
  }
  return {};
}

std::optional<std::string> percent_decode(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out += text[i];
      continue;
    }
    if (i + 2 >= text.size()) return std::nullopt;
    const int high = hex_digit(text[i + 1]);
    const int low = hex_digit(text[i + 2]);
    if (high < 0 || low < 0 || (high == 0 && low == 0)) return std::nullopt;
    out += static_cast<char>(high * 16 + low);
    i += 2;
  }
  return out;
}

bool is_loopback(const std::string& host) {
  asio::io_context io;
  const auto endpoints = resolve(io, host, 0);
  return std::all_of(endpoints.begin(), endpoints.end(),
                     [](const Tcp::endpoint& e) { return e.address().is_loopback(); });
}

struct HttpServer::Impl {
  Impl(const HttpOptions& http_options, HttpHandlers http_handlers)
      : options(http_options),
        handlers(std::move(http_handlers)),
        work(asio::make_work_guard(io)),
        workers(static_cast<size_t>(std::max(1, options.n_workers))),
        retry(io) {
    hub.dispatch = [this](HttpRequest request, std::shared_ptr<HttpReply> reply) {
      dispatch(std::move(request), std::move(reply));
    };
    hub.forget = [this](ConnectionBase* connection) {
      connections.erase(connection);
      hub.n_connections = static_cast<int64_t>(connections.size());
      n_connections = hub.n_connections;
    };
    if (!options.tls_certificate_file.empty() || !options.tls_key_file.empty()) load_certificate();
    listen();
  }

  void load_certificate() {
    if (options.tls_certificate_file.empty() || options.tls_key_file.empty()) {
      fail(Error::Kind::kUsage, "TLS: expected a certificate file and a key file, got only one of them");
    }
    tls.emplace(asio::ssl::context::tls_server);
    tls->set_options(asio::ssl::context::default_workarounds | asio::ssl::context::no_sslv2 |
                     asio::ssl::context::no_sslv3 | asio::ssl::context::no_tlsv1 |
                     asio::ssl::context::no_tlsv1_1);
    ErrorCode error;
    tls->use_certificate_chain_file(options.tls_certificate_file, error);
    if (error) {
      fail(Error::Kind::kUsage, "{}: expected a PEM certificate, got: {}", options.tls_certificate_file,
           error.message());
    }
    tls->use_private_key_file(options.tls_key_file, asio::ssl::context::pem, error);
    if (error) {
      fail(Error::Kind::kUsage, "{}: expected the PEM key of {}, got: {}", options.tls_key_file,
           options.tls_certificate_file, error.message());
    }
  }

  // Every address of the host, so that "localhost" answers on IPv4 and IPv6, all with one port.
  void listen() {
    ErrorCode first_error;
    for (Tcp::endpoint endpoint : resolve(io, options.host, options.port)) {
      if (endpoint.port() == 0 && bound_port != 0) endpoint.port(bound_port);
      Tcp::acceptor acceptor(io);
      ErrorCode error;
      acceptor.open(endpoint.protocol(), error);
      if (!error) acceptor.set_option(Tcp::acceptor::reuse_address(true), error);
      if (!error && endpoint.address().is_v6()) acceptor.set_option(asio::ip::v6_only(true), error);
      if (!error) acceptor.bind(endpoint, error);
      if (!error) acceptor.listen(1024, error);
      if (error) {
        if (!first_error) first_error = error;
        continue;  // a machine without IPv6 still resolves localhost to ::1
      }
      bound_port = acceptor.local_endpoint().port();
      acceptors.push_back(std::move(acceptor));
    }
    if (acceptors.empty()) {
      fail(Error::Kind::kFailure, "cannot listen on {} port {}: {}", options.host, options.port,
           first_error.message());
    }
  }

  void accept(size_t index) {
    acceptors[index].async_accept([this, index](const ErrorCode& error, Tcp::socket socket) {
      if (hub.is_draining || error == asio::error::operation_aborted) return;
      if (!error) {
        add(std::move(socket));
        return accept(index);
      }
      // Out of file descriptors, most likely: the next try must wait, or this loop takes all of the thread.
      if (!is_accept_warned) log_warning("cannot accept a connection: {}", error.message());
      is_accept_warned = true;
      retry.expires_after(std::chrono::milliseconds(100));
      retry.async_wait([this](const ErrorCode& stopped) {
        if (stopped) return;
        for (size_t i = 0; i < acceptors.size(); ++i) accept(i);
      });
    });
  }

  void add(Tcp::socket socket) {
    ErrorCode error;
    const Tcp::endpoint remote = socket.remote_endpoint(error);
    if (error) return;
    if (hub.n_connections >= options.max_connections) return turn_away(std::move(socket));
    std::shared_ptr<ConnectionBase> connection;
    if (tls) {
      connection = std::make_shared<Connection<TlsStream>>(hub, remote, std::move(socket), *tls);
    } else {
      connection = std::make_shared<Connection<Tcp::socket>>(hub, remote, std::move(socket));
    }
    connections.emplace(connection.get(), connection);
    hub.n_connections = static_cast<int64_t>(connections.size());
    n_connections = hub.n_connections;
    connection->begin();
  }

  void turn_away(Tcp::socket socket) const {
    if (tls) return;
    const std::string body = handlers.error_body(503, "too many connections");
    const std::string text = fmt::format(
        "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nContent-Length: {}\r\n"
        "Retry-After: 1\r\nConnection: close\r\n\r\n{}",
        body.size(), body);
    ErrorCode ignored;
    socket.non_blocking(true, ignored);
    socket.write_some(asio::buffer(text), ignored);
  }

  void dispatch(HttpRequest request, std::shared_ptr<HttpReply> reply) {
    // Reading counters takes microseconds and must not wait behind the tokenizing of long prompts.
    const bool is_light = request.method == "GET" || request.method == "HEAD";
    auto call = [this, request = std::move(request), reply = std::move(reply)]() mutable {
      const std::string id = request.id;
      try {
        handlers.handle(std::move(request), std::move(reply));
      } catch (const std::exception& error) {
        log_line(LogLevel::kError, fmt::format("{}: unexpected: {}", id, error.what()));
      }
    };
    if (is_light) {
      call();
    } else {
      asio::post(workers, std::move(call));
    }
  }

  void start() {
    asio::post(io, [this] {
      for (size_t i = 0; i < acceptors.size(); ++i) accept(i);
    });
    thread = std::thread([this] {
      while (true) {
        try {
          io.run();
          return;
        } catch (const std::exception& error) {
          log_line(LogLevel::kError, fmt::format("I/O thread: unexpected: {}", error.what()));
        }
      }
    });
  }

  // Runs `f` on the I/O thread and waits.
  template <typename F>
  auto on_io(F&& f) {
    std::packaged_task<decltype(f())()> task(std::forward<F>(f));
    auto result = task.get_future();
    asio::post(io, [&task] { task(); });
    return result.get();
  }

  bool drain(std::chrono::milliseconds limit) {
    const auto end = Clock::now() + limit;
    on_io([this] {
      hub.is_draining = true;
      ErrorCode ignored;
      for (auto& acceptor : acceptors) acceptor.close(ignored);
      retry.cancel();
      for (const auto& connection : snapshot()) connection->close_if_idle();
    });
    while (on_io([this] { return hub.n_busy; }) > 0) {
      if (Clock::now() >= end) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return true;
  }

  std::vector<std::shared_ptr<ConnectionBase>> snapshot() const {
    std::vector<std::shared_ptr<ConnectionBase>> all;
    all.reserve(connections.size());
    for (const auto& entry : connections) all.push_back(entry.second);
    return all;
  }

  void stop() {
    if (!thread.joinable()) return;
    workers.join();
    on_io([this] {
      hub.is_draining = true;
      ErrorCode ignored;
      for (auto& acceptor : acceptors) acceptor.close(ignored);
      retry.cancel();
      for (const auto& connection : snapshot()) connection->close();
    });
    work.reset();
    // Operations of the closed sockets end with an error; what still waits for a clock does not matter.
    io.stop();
    thread.join();
  }

  HttpOptions options;
  HttpHandlers handlers;
  asio::io_context io{1};
  asio::executor_work_guard<asio::io_context::executor_type> work;
  Hub hub{options, handlers, io, {}, 0, 0, 0, false, {}};
  std::optional<asio::ssl::context> tls;
  std::vector<Tcp::acceptor> acceptors;
  uint16_t bound_port = 0;
  asio::thread_pool workers;
  asio::steady_timer retry;
  bool is_accept_warned = false;
  std::unordered_map<ConnectionBase*, std::shared_ptr<ConnectionBase>> connections;
  std::atomic<int64_t> n_connections{0};
  std::thread thread;
};

HttpServer::HttpServer(const HttpOptions& options, HttpHandlers handlers)
    : impl_(std::make_unique<Impl>(options, std::move(handlers))) {}

HttpServer::~HttpServer() { impl_->stop(); }

void HttpServer::start() { impl_->start(); }
bool HttpServer::drain(std::chrono::milliseconds limit) { return impl_->drain(limit); }
uint16_t HttpServer::port() const { return impl_->bound_port; }
int64_t HttpServer::n_connections() const { return impl_->n_connections; }

std::string HttpServer::url() const {
  const std::string& host = impl_->options.host;
  const bool is_v6 = host.find(':') != std::string::npos;
  return fmt::format("{}://{}{}{}:{}", impl_->tls ? "https" : "http", is_v6 ? "[" : "", host,
                     is_v6 ? "]" : "", impl_->bound_port);
}

}  // namespace synod::server
