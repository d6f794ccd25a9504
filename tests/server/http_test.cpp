// The HTTP layer alone: limits, keep-alive, streams, leaving clients, draining.
#include "server/http.h"

#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <fstream>
#include <mutex>
#include <thread>

#include "raw_client.h"
#include "server/api.h"
#include "temp_folder.h"

namespace synod::server {
namespace {

using namespace std::chrono_literals;

// Echoes bodies; /stream writes `writes` pieces; /hold waits for the client to leave.
struct EchoServer {
  explicit EchoServer(HttpOptions options = {}) : server_(with_port(std::move(options)), handlers()) {
    server_.start();
  }

  // Replies must go before their server, those that come now as well.
  ~EchoServer() {
    const std::lock_guard lock(mutex);
    is_over = true;
    held.clear();
  }

  static HttpOptions with_port(HttpOptions options) {
    options.port = 0;
    return options;
  }

  HttpHandlers handlers() {
    HttpHandlers h;
    h.admit = [](const HttpRequest& request) -> std::optional<std::pair<HttpHead, std::string>> {
      if (request.path != "/secret") return std::nullopt;
      HttpHead head;
      head.status = 401;
      return std::pair(head, std::string("no"));
    };
    h.handle = [this](HttpRequest request, std::shared_ptr<HttpReply> reply) {
      if (request.path == "/hold") {
        reply->start({}, ": ping\n\n", 30ms);
        reply->on_close([this] {
          const std::lock_guard lock(mutex);
          ++left;
          changed.notify_all();
        });
        const std::lock_guard lock(mutex);
        if (!is_over) held.push_back(std::move(reply));
        changed.notify_all();
      } else if (request.path == "/stream") {
        reply->start({}, "", 0ms);
        for (int i = 0; i < 3; ++i) reply->write("piece" + std::to_string(i));
        reply->finish();
      } else if (request.path == "/flood") {
        reply->start({}, "", 0ms);
        reply->on_close([this] { ++left; });
        for (int i = 0; i < 60; ++i) reply->write(std::string(1 << 20, 'x'));
        reply->finish();
      } else if (request.path == "/drop") {
        return;
      } else if (request.path == "/throw") {
        throw std::runtime_error("boom");
      } else {
        reply->send({}, request.method + " " + request.path + " " + request.body);
      }
    };
    h.error_body = [](int status, std::string_view) { return std::to_string(status); };
    h.log = [this](const HttpLogEntry&) { ++logged; };
    return h;
  }

  bool wait(const std::function<bool()>& condition) {
    std::unique_lock lock(mutex);
    return changed.wait_for(lock, 60s, condition);
  }

  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::shared_ptr<HttpReply>> held;
  bool is_over = false;
  std::atomic<int> left{0}, logged{0};
  HttpServer server_;
  uint16_t port() const { return server_.port(); }
};

TEST(Http, KeepsTheConnectionAndReadsPipelinedRequests) {
  EchoServer server;
  RawClient client(server.port());
  for (int i = 0; i < 3; ++i) {
    client.send(post_text("/a", "body" + std::to_string(i)));
    EXPECT_EQ(client.read_reply().body, "POST /a body" + std::to_string(i));
  }
  client.send(post_text("/x", "1") + get_text("/y") + post_text("/z", "3"));
  EXPECT_EQ(client.read_reply().body, "POST /x 1");
  EXPECT_EQ(client.read_reply().body, "GET /y ");
  EXPECT_EQ(client.read_reply().body, "POST /z 3");
  client.send("GET /last HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  EXPECT_NE(client.read_reply().head.find("Connection: close"), std::string::npos);
  EXPECT_EQ(client.receive(2s), "");
  EXPECT_TRUE(client.is_closed());
}

TEST(Http, StreamsInChunksAndToOldClientsUntilTheEnd) {
  EchoServer server;
  const RawReply chunked = exchange(server.port(), get_text("/stream"));
  EXPECT_EQ(chunked.body, "piece0piece1piece2");
  EXPECT_TRUE(chunked.is_complete);
  RawClient old(server.port());
  old.send("GET /stream HTTP/1.0\r\n\r\n");
  std::string all;
  for (std::string text; !(text = old.receive(2s)).empty();) all += text;
  EXPECT_EQ(all.substr(all.find("\r\n\r\n") + 4), "piece0piece1piece2");
}

TEST(Http, ReadsChunkedBodiesAndAnswersExpect) {
  EchoServer server;
  RawClient client(server.port());
  client.send(
      "POST /c HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n");
  EXPECT_EQ(client.read_reply().body, "POST /c abcde");
  client.send("POST /e HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n");
  EXPECT_EQ(client.receive(2s).rfind("HTTP/1.1 100", 0), 0U);
  client.send("ok");
  EXPECT_EQ(client.read_reply().body, "POST /e ok");
}

TEST(Http, RefusesWhatIsTooLargeOrNoRequestAndStaysAlive) {
  HttpOptions options;
  options.max_body_bytes = 1000;
  options.max_header_bytes = 4096;
  EchoServer server(options);
  EXPECT_EQ(exchange(server.port(), post_text("/a", std::string(1001, 'x'))).status, 413);
  EXPECT_EQ(
      exchange(server.port(), "POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 1073741824\r\n\r\n").status,
      413);
  EXPECT_EQ(exchange(server.port(), get_text("/a", "X: " + std::string(8000, 'x') + "\r\n")).status, 431);
  EXPECT_EQ(exchange(server.port(), "nonsense\r\n\r\n").status, 400);
  EXPECT_EQ(exchange(server.port(), "GET /a HTTP/9.9\r\n\r\n").status, 400);
  EXPECT_EQ(exchange(server.port(), "GET a HTTP/1.1\r\nHost: x\r\n\r\n").status, 400);
  EXPECT_EQ(exchange(server.port(), "POST /a HTTP/1.1\r\nContent-Length: -1\r\n\r\n").status, 400);
  EXPECT_EQ(
      exchange(server.port(), "POST /a HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n")
          .status,
      400);
  EXPECT_EQ(
      exchange(server.port(), "POST /a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n")
          .status,
      400);
  // Far more header than is accepted: refused, and the reply can be read although the client still sends.
  RawClient client(server.port());
  client.send("GET /a HTTP/1.1\r\nX: ");
  const std::string block(1 << 20, 'x');
  for (int i = 0; i < 64 && client.send(block); ++i) {
  }
  const RawReply reply = client.read_reply(5s);
  EXPECT_TRUE(reply.status == 431 || reply.status == 0) << reply.status;
  EXPECT_EQ(exchange(server.port(), post_text("/a", "fine")).body, "POST /a fine");
}

// A gibibyte without a length: refused at the limit, whatever the client still sends.
TEST(Http, ChunkedBodiesAreCutOffAtTheLimit) {
  HttpOptions options;
  options.max_body_bytes = 1 << 20;
  EchoServer server(options);
  RawClient client(server.port());
  client.send("POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n");
  const std::string chunk = "100000\r\n" + std::string(1 << 20, 'x') + "\r\n";
  int sent = 0;
  while (sent < 1024 && client.send(chunk)) ++sent;
  EXPECT_LT(sent, 1024) << "the connection was to be closed";
  const RawReply reply = client.read_reply(5s);
  EXPECT_TRUE(reply.status == 413 || reply.status == 0) << reply.status;
  EXPECT_EQ(exchange(server.port(), post_text("/a", "fine")).body, "POST /a fine");
}

TEST(Http, RefusesByTheHeadBeforeTheBodyIsSent) {
  EchoServer server;
  RawClient client(server.port());
  client.send("POST /secret HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n");
  EXPECT_EQ(client.read_reply().status, 401);
}

TEST(Http, SlowHeadersAndBodiesAreCutOff) {
  HttpOptions options;
  options.header_timeout = 200ms;
  options.body_timeout = 200ms;
  options.idle_timeout = 300ms;
  EchoServer server(options);
  const auto closes = [&](const std::string& text) {
    RawClient client(server.port());
    client.send(text);
    client.receive(3s);
    return client.is_closed();
  };
  EXPECT_TRUE(closes("GET /a HTTP/1.1\r\nHo"));
  EXPECT_TRUE(closes("POST /a HTTP/1.1\r\nContent-Length: 10\r\n\r\nabc"));
  EXPECT_TRUE(closes(""));
  RawClient drip(server.port());  // a byte now and then does not help
  const auto start = std::chrono::steady_clock::now();
  while (drip.send("x") && std::chrono::steady_clock::now() - start < 3s) {
    drip.receive(20ms);
    if (drip.is_closed()) break;
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, 2s);
}

TEST(Http, TellsWhenTheClientLeavesAndPingsWhileItStays) {
  EchoServer server;
  {
    RawClient client(server.port());
    client.send(get_text("/hold"));
    std::string text;
    for (int i = 0; i < 50 && text.find(": ping") == std::string::npos; ++i) text += client.receive(100ms);
    EXPECT_NE(text.find(": ping\n\n"), std::string::npos);
    EXPECT_EQ(server.left, 0);
  }
  EXPECT_TRUE(server.wait([&] { return server.left == 1; }));
  // Late writes to someone who has gone do nothing.
  server.held[0]->write("late");
  server.held[0]->finish();
  EXPECT_EQ(exchange(server.port(), post_text("/a", "x")).status, 200);
}

TEST(Http, DisconnectsReadersThatDoNotRead) {
  HttpOptions options;
  options.max_unsent_bytes = 4 << 20;
  EchoServer server(options);
  RawClient client(server.port());
  client.set_receive_buffer(4096);
  client.send(get_text("/flood"));
  for (int i = 0; i < 3000 && server.left == 0; ++i) std::this_thread::sleep_for(10ms);
  EXPECT_EQ(server.left, 1);
  EXPECT_EQ(exchange(server.port(), post_text("/a", "x")).status, 200);
}

TEST(Http, UnansweredAndFailedRequestsEndTheConnection) {
  EchoServer server;
  EXPECT_EQ(exchange(server.port(), post_text("/drop", "x")).status, 0);
  EXPECT_EQ(exchange(server.port(), post_text("/throw", "x")).status, 0);
  EXPECT_EQ(exchange(server.port(), get_text("/throw")).status, 0);
}

TEST(Http, TurnsAwayConnectionsAboveTheLimit) {
  HttpOptions options;
  options.max_connections = 20;
  EchoServer server(options);
  std::vector<RawClient> clients;
  for (int i = 0; i < 20; ++i) {
    clients.emplace_back(server.port());
    clients.back().send(post_text("/a", "x"));
    ASSERT_EQ(clients.back().read_reply().status, 200);
  }
  EXPECT_EQ(RawClient(server.port()).read_reply(2s).status, 503);
  clients.clear();
  for (int i = 0; i < 100 && server.server_.n_connections() > 0; ++i) std::this_thread::sleep_for(10ms);
  EXPECT_EQ(exchange(server.port(), post_text("/a", "x")).status, 200);
}

TEST(Http, LimitsTheBytesOfAllBodiesTogether) {
  HttpOptions options;
  options.max_body_bytes = 4 << 20;
  options.max_bodies_bytes = 6 << 20;
  EchoServer server(options);
  std::vector<RawClient> clients;
  const std::string most(3 << 20, 'x');
  bool is_refused = false;
  for (int i = 0; i < 4; ++i) {
    clients.emplace_back(server.port());
    clients.back().send("POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 4000000\r\n\r\n");
    clients.back().send(most);
    is_refused = is_refused || clients.back().read_reply(300ms).status == 503;
  }
  EXPECT_TRUE(is_refused);
  clients.clear();
  std::this_thread::sleep_for(100ms);
  EXPECT_EQ(exchange(server.port(), post_text("/a", most)).status, 200);
}

TEST(Http, DrainsRunningRepliesAndTakesNoMore) {
  EchoServer server;
  RawClient idle(server.port());
  RawClient busy(server.port());
  busy.send(get_text("/hold"));
  ASSERT_TRUE(server.wait([&] { return !server.held.empty(); }));
  std::thread drainer([&] { EXPECT_TRUE(server.server_.drain(5s)); });
  std::this_thread::sleep_for(100ms);
  EXPECT_EQ(RawClient(server.port()).read_reply(200ms).status, 0);
  server.held[0]->write("end");
  server.held[0]->finish();
  const RawReply reply = busy.read_reply();
  EXPECT_TRUE(reply.is_complete);
  EXPECT_TRUE(reply.body.ends_with("end"));
  drainer.join();
  EXPECT_FALSE([&] {
    EchoServer other;
    RawClient client(other.port());
    client.send(get_text("/hold"));
    other.wait([&] { return !other.held.empty(); });
    return other.server_.drain(50ms);
  }());
}

TEST(Http, HoldsTwoThousandIdleStreams) {
  EchoServer server;
  std::vector<RawClient> clients;
  for (int i = 0; i < 2000; ++i) {
    clients.emplace_back(server.port());
    if (!clients.back().is_open()) GTEST_SKIP() << "only " << i << " sockets can be opened here";
    clients.back().send(get_text("/hold"));
  }
  ASSERT_TRUE(server.wait([&] { return server.held.size() == 2000; }));
  EXPECT_EQ(exchange(server.port(), post_text("/a", "x")).status, 200);
  for (auto& reply : server.held) reply->write("hello");
  int received = 0;
  for (RawClient& client : clients) {
    std::string text;
    while (text.find("hello") == std::string::npos) {
      const std::string more = client.receive(5s);
      if (more.empty()) break;
      text += more;
    }
    received += text.find("hello") != std::string::npos ? 1 : 0;
  }
  EXPECT_EQ(received, 2000);
  clients.clear();
  EXPECT_TRUE(server.wait([&] { return server.left == 2000; }));
}

TEST(Http, AddressInUseIsAnErrorAtOnce) {
  EchoServer server;
  HttpOptions options;
  options.port = server.port();
  EXPECT_THROW(HttpServer(options, server.handlers()), Error);
  options.host = "no-such-host.invalid";
  EXPECT_THROW(HttpServer(options, server.handlers()), Error);
  EXPECT_TRUE(is_loopback("127.0.0.1"));
  EXPECT_FALSE(is_loopback("0.0.0.0"));
}

TEST(Http, TlsServesWithAGoodCertificateAndRefusesToStartWithABadOne) {
  const test::TempFolder dir;
  const std::string certificate = (dir / "c.pem").string();
  const std::string key = (dir / "k.pem").string();
  if (std::system(("openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -keyout '" + key +
                   "' -out '" + certificate + "' >/dev/null 2>&1")
                      .c_str()) != 0) {
    GTEST_SKIP() << "no openssl program";
  }
  HttpOptions options;
  options.tls_certificate_file = certificate;
  EXPECT_THROW(EchoServer{options}, Error);
  options.tls_key_file = certificate;
  EXPECT_THROW(EchoServer{options}, Error);
  options.tls_key_file = key;
  EchoServer server(options);
  EXPECT_EQ(server.server_.url().rfind("https://", 0), 0U);
  const std::string out = (dir / "out").string();
  const std::string command =
      "printf 'POST /tls HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\nContent-Length: 2\\r\\n\\r\\nhi' "
      "| "
      "openssl s_client -quiet -connect 127.0.0.1:" +
      std::to_string(server.port()) + " >'" + out + "' 2>/dev/null";
  static_cast<void>(std::system(command.c_str()));
  std::ifstream in(out);
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  EXPECT_NE(text.find("POST /tls hi"), std::string::npos) << text;
  // Plain text to a TLS port is cut off, and the next is served.
  EXPECT_EQ(exchange(server.port(), get_text("/a")).status, 0);
}

TEST(Keys, AreComparedWhole) {
  EXPECT_TRUE(equal_keys("abc", "abc"));
  EXPECT_FALSE(equal_keys("abc", "abd"));
  EXPECT_FALSE(equal_keys("abc", "abcabc"));
  EXPECT_FALSE(equal_keys("abcabc", "abc"));
  EXPECT_FALSE(equal_keys("abc", ""));
  EXPECT_FALSE(equal_keys("", "abc"));
}

}  // namespace
}  // namespace synod::server
