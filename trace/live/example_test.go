package live_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/host"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/trace/live"
)

// Example serves the memory pages of a cache and reads its statistics.
func Example() {
	dev, _ := host.New(host.Config{Capacity: 64 << 20})
	defer dev.Close()
	cache, _ := memcache.New(dev, memcache.Config{})
	defer cache.Close()
	pages, err := live.New(live.Config{Cache: cache})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer pages.Close()
	mux := http.NewServeMux()
	mux.Handle(live.Prefix, pages)
	server := httptest.NewServer(mux) // http.ListenAndServe("localhost:6060", mux) in a program
	defer server.Close()

	stream, _ := dev.NewStream(device.StreamOptions{})
	block, _ := cache.Alloc(context.Background(), 1<<20, stream)
	answer, err := http.Get(server.URL + live.Prefix + "stats")
	if err != nil {
		fmt.Println(err)
		return
	}
	text, _ := io.ReadAll(answer.Body)
	_ = answer.Body.Close()
	http.DefaultClient.CloseIdleConnections()
	fmt.Println(answer.StatusCode, strings.Contains(string(text), `"allocated_bytes.all.current":1048576`), block.Free())
	// Output: 200 true <nil>
}
