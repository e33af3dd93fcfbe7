package rendezvous_test

import (
	"context"
	"fmt"
	"net"
	"sync"

	"github.com/cistern-ml/cistern/device/rendezvous"
)

// Example sends an id from rank 0 to rank 1. The ranks are goroutines here; processes get their
// configuration from FromEnvironment.
func Example() {
	l, _ := net.Listen("tcp", "127.0.0.1:0")
	port := l.Addr().(*net.TCPAddr).Port // free for rank 0
	_ = l.Close()
	var ranks sync.WaitGroup
	ids := make([]string, 2)
	for rank := range 2 {
		ranks.Go(func() {
			cfg := rendezvous.Config{Rank: rank, Size: 2, Addr: "127.0.0.1", Port: port}
			id, err := rendezvous.Exchange(context.Background(), cfg, []byte("the id of rank 0"))
			if err != nil {
				fmt.Println(err)
			}
			ids[rank] = string(id)
		})
	}
	ranks.Wait()
	fmt.Println(ids[1])
	// Output: the id of rank 0
}
