package backend

import "sync"

// Handles are objects of a driver, or of a library, that are used again: making one takes longer than using it. There
// are as many as were ever in use at a time.
type Handles[H any] struct {
	mu    sync.Mutex
	free  []H
	all   []H // that were ever made
	ended bool
}

// Take returns one that nobody uses, made if there is none. No lock is held meanwhile.
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

// Put gives one back.
func (p *Handles[H]) Put(h H) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.ended {
		p.free = append(p.free, h)
	}
}

// End takes them all, to be destroyed. What is put back later is gone already.
func (p *Handles[H]) End() []H {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := p.all
	p.all, p.free, p.ended = nil, nil, true
	return all
}
