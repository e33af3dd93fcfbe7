package hosts

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestCheck: only the server's own names and addresses pass, as clients spell them.
func TestCheck(t *testing.T) {
	handler := Check(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }),
		"GPU-box.example.org", "with-port:8080", "", "192.0.2.7")
	get := func(host, local string) *httptest.ResponseRecorder {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Host = host
		if local != "" {
			addr, err := net.ResolveTCPAddr("tcp", local)
			require.NoError(t, err)
			r = r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, net.Addr(addr)))
		}
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		return w
	}
	const there = "198.51.100.3:6060"
	for _, host := range []string{
		"localhost", "localhost:6060", "LOCALHOST.:6060", "127.0.0.1", "127.0.0.1:6060", "127.9.9.9", "[::1]:6060", "[::1]", "[::ffff:127.0.0.1]:1",
		"198.51.100.3", "198.51.100.3:80", "[::ffff:198.51.100.3]:6060", "0.0.0.0:6060", "[::]:6060",
		"gpu-box.example.org", "GPU-Box.Example.org.:443", "with-port", "with-port:1", "192.0.2.7:6060",
	} {
		require.Equal(t, http.StatusNoContent, get(host, there).Code, host)
	}
	for _, host := range []string{
		"", ":6060", "evil.example", "evil.example:6060", "localhost.evil.example", "evil.localhost", "127.0.0.1.evil.example", "198.51.100.4", "10.0.0.1:6060",
		"[fe80::1]:6060", "example.org", "2130706433", "127.1", "localhost evil", "evil@localhost",
	} {
		w := get(host, there)
		require.Equal(t, http.StatusForbidden, w.Code, host)
		require.Contains(t, w.Body.String(), "is unknown here: ask for localhost", host)
	}
	require.Equal(t, http.StatusForbidden, get("198.51.100.3", "").Code)
	require.Equal(t, http.StatusNoContent, get("[fe80::1%25eth0]:6060", "[fe80::1]:6060").Code)
	require.Equal(t, http.StatusNoContent, get("[2001:db8::1]", "[2001:db8::1]:6060").Code)
}
