//go:build cuda

package cuda

// #include "shim.h"
import "C"

import "sync"

// handles are objects of the driver, or of a library, that are used again.
type handles struct {
	mu   sync.Mutex
	free []C.uint64_t
	all  []C.uint64_t // that were ever made

	ended bool
}

// take returns one that nobody uses, made if there is none.
func (p *handles) take(fresh func(*C.uint64_t) error) (C.uint64_t, error) {
	p.mu.Lock()
	if n := len(p.free); n > 0 {
		h := p.free[n-1]
		p.free = p.free[:n-1]
		p.mu.Unlock()
		return h, nil
	}
	p.mu.Unlock()
	var h C.uint64_t
	if err := fresh(&h); err != nil {
		return 0, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.all = append(p.all, h)
	return h, nil
}

// put gives one back.
func (p *handles) put(h C.uint64_t) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.ended {
		p.free = append(p.free, h)
	}
}

// end takes them all, to be destroyed. What is given back later is gone already.
func (p *handles) end() []C.uint64_t {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := p.all
	p.all, p.free, p.ended = nil, nil, true
	return all
}
