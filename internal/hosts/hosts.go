// Package hosts refuses HTTP requests for host names that are not the server's own. A page of
// another site can make its name resolve to this machine (DNS rebinding), so that the browser lets
// the page read the answers of a server on localhost. Such a request still carries the other name.
package hosts

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// Check passes a request on to next if its Host is localhost, a loopback address, the address at
// which the request came in, or one of the names, with any port. Other requests get status 403.
// "::" and "0.0.0.0", the addresses of some listeners, pass too, because an address needs no name
// look-up.
func Check(next http.Handler, names ...string) http.Handler {
	known := []string{"localhost"}
	for _, n := range names {
		if n = withoutPort(n); n != "" {
			known = append(known, n)
		}
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if host := withoutPort(r.Host); slices.Contains(known, host) || isOwn(host, r) {
			next.ServeHTTP(w, r)
			return
		}
		http.Error(w, fmt.Sprintf("host %q is unknown here: ask for localhost or the server's address, or let the program list the name (Hosts of live.Config)", r.Host), http.StatusForbidden)
	})
}

// withoutPort returns the name or address in "name:port", "name", "[address]:port" or "[address]",
// in lower case.
func withoutPort(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	return strings.ToLower(strings.TrimSuffix(host, "."))
}

func isOwn(host string, r *http.Request) bool {
	ip, err := netip.ParseAddr(host)
	if err != nil {
		return false
	}
	if ip = ip.Unmap(); ip.IsLoopback() || ip.IsUnspecified() {
		return true
	}
	local, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if !ok {
		return false
	}
	at, err := netip.ParseAddrPort(local.String())
	return err == nil && at.Addr().Unmap().WithZone("") == ip.WithZone("")
}
