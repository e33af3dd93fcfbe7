package matching

import "github.com/cistern-ml/cistern/device"

// in returns the post that a rank is in, or nil.
func (w *World) in(r int) *Post {
	if posts := w.ranks[r].posts; len(posts) > 0 {
		return posts[0]
	}
	return nil
}

// enter numbers the calls of p, its rank's present post, and matches them with the other ranks'
// present posts. Ranks whose post is matched continue with their next one. The caller holds the
// lock, as for all functions of this file.
func (w *World) enter(p *Post) *device.CollectiveError {
	m := &w.ranks[p.rank]
	for i := range p.calls {
		counter := &m.collectives
		switch c := &p.calls[i]; c.Kind {
		case Send:
			counter = &m.sent[c.Peer]
		case Recv:
			counter = &m.received[c.Peer]
		}
		p.numbers[i] = *counter
		*counter++
	}
	for i := range p.calls {
		if !p.matched[i] {
			if err := w.match(p, i); err != nil {
				return err
			}
		}
	}
	if p.open > 0 {
		if err := w.waiting(p, p, make([]bool, w.size)); err != nil {
			return err
		}
	}
	return w.advance()
}

// advance removes the matched posts and enters their successors.
func (w *World) advance() *device.CollectiveError {
	for r := range w.ranks {
		m := &w.ranks[r]
		if len(m.posts) == 0 || m.posts[0].open > 0 {
			continue
		}
		m.posts[0] = nil
		m.posts = m.posts[1:]
		if len(m.posts) > 0 {
			return w.enter(m.posts[0]) // enter advances the other ranks
		}
	}
	return nil
}

// match looks for the counterparts of call i of p.
func (w *World) match(p *Post, i int) *device.CollectiveError {
	c := &p.calls[i]
	if c.Kind.Pairs() {
		if !w.ranks[c.Peer].here {
			p.match(i)
			return nil
		}
		q := w.in(c.Peer)
		j := find(q, p, i)
		if j < 0 {
			return nil
		}
		if !c.Matches(&q.calls[j]) {
			return w.differ(p, i, q, j)
		}
		p.match(i)
		q.match(j)
		return nil
	}
	at, all := make([]int, w.size), true
	for r := range w.ranks {
		if !w.ranks[r].here {
			continue
		}
		q := w.in(r)
		if at[r] = find(q, p, i); at[r] < 0 {
			all = false
		} else if !c.Matches(&q.calls[at[r]]) {
			return w.differ(p, i, q, at[r])
		}
	}
	for r := range w.ranks {
		if all && w.ranks[r].here {
			w.in(r).match(at[r])
		}
	}
	return nil
}

func (p *Post) match(i int) {
	if !p.matched[i] {
		p.matched[i] = true
		p.open--
	}
}

// find returns the index in q of the counterpart of call i of p, or -1.
func find(q, p *Post, i int) int {
	if q == nil {
		return -1
	}
	return Find(q.calls, q.numbers, &p.calls[i], p.numbers[i], p.rank)
}

// waits reports whether q waits for rank r.
func (w *World) waits(q *Post, r int) bool {
	if !w.ranks[r].here {
		return false
	}
	for i := range q.calls {
		c := &q.calls[i]
		if !q.matched[i] && (!c.Kind.Pairs() || c.Peer == r) && find(w.in(r), q, i) < 0 {
			return true
		}
	}
	return false
}

// waiting checks whether the unmatched post q can still be matched. It can't if a rank for which it
// waits has left, or waits for p, directly or through other ranks.
func (w *World) waiting(p, q *Post, seen []bool) *device.CollectiveError {
	for r := range w.ranks {
		if !w.waits(q, r) {
			continue
		}
		next := w.in(r)
		switch {
		case w.ranks[r].left:
			return w.failure(p.Name(), p.rank, []int{r}, device.ErrAborted, "rank %d has closed its communicator, and rank %d is in %v", r, p.rank, p)
		case next == nil || next.open == 0: // the rank will come
		case r == p.rank:
			return w.failure(p.Name(), p.rank, []int{p.rank, q.rank}, device.ErrMismatch, "rank %d is in %v, rank %d in %v: they would wait for each other", p.rank, p, q.rank, q)
		case !seen[r]:
			seen[r] = true
			if err := w.waiting(p, next, seen); err != nil {
				return err
			}
		}
	}
	return nil
}

func (w *World) differ(p *Post, i int, q *Post, j int) *device.CollectiveError {
	return w.failure(p.Name(), p.rank, []int{p.rank, q.rank}, device.ErrMismatch, "rank %d is in %s, rank %d in %s", p.rank, p.calls[i].Describe(p.numbers[i]), q.rank, q.calls[j].Describe(q.numbers[j]))
}
