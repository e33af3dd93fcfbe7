package transfer

import (
	"runtime"
	"sync"
	"sync/atomic"
	"weak"

	"github.com/cistern-ml/cistern/device"
)

// moved has the offset that UseShard adds to a processor's number, an *atomic.Int64 for each pool
// of NewOfShards that is in use. Entries are removed, because an hour's soak makes millions.
var moved sync.Map

// NewOfShards is New with a number of shards.
func NewOfShards(dev device.Device, cfg Config, shards int) *Pool {
	p := newPool(dev, cfg, shards)
	by, number := new(atomic.Int64), p.cache.processor
	moved.Store(weak.Make(p), by)
	runtime.AddCleanup(p, func(p weak.Pointer[Pool]) { moved.Delete(p) }, weak.Make(p))
	p.cache.processor = func() int { return number() + int(by.Load()) }
	return p
}

// UseShard makes the next calls use other shards than the last ones.
func (p *Pool) UseShard(i int) {
	if by, ok := moved.Load(weak.Make(p)); ok {
		by.(*atomic.Int64).Store(int64(i))
	}
}

// RoundSize is roundSize.
func RoundSize(bytes int64) int64 { return roundSize(bytes) }
