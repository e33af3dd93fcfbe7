package backend

import "sync"

// Handles reuses objects of a driver or library that take longer to make than to use. It holds as
// many as were ever in use at a time.
type Handles[H any] struct {
	mu    sync.Mutex
	free  []H
	all   []H // all that were ever made
	ended bool
}

// Take returns a handle that is not in use, and calls fresh if there is none, without a lock.
func (p *Handles[H]) Take(fresh func(*H) error) (H, error) {
	p.mu.Lock()
	if n := len(p.free); n > 0 {
		h := p.free[n-1]
		p.free = p.free[:n-1]
		p.mu.Unlock()
		return h, nil
	}
	p.mu.Unlock()
	var h H
	if err := fresh(&h); err != nil {
		return h, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.all = append(p.all, h)
	return h, nil
}

// Put returns a handle for reuse.
func (p *Handles[H]) Put(h H) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.ended {
		p.free = append(p.free, h)
	}
}

// End removes and returns all handles, for the caller to destroy. They include handles that are put
// back later.
func (p *Handles[H]) End() []H {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := p.all
	p.all, p.free, p.ended = nil, nil, true
	return all
}
