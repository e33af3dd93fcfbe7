// Package perfettotest checks files in the Trace Event Format as Perfetto reads them. It shares no
// code with package timeline, which writes such files.
package perfettotest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/big"
	"slices"
)

// lane is a process and a thread.
type lane struct{ pid, tid string }

// slice is an X event, or one end of an arrow, which has no length.
type slice struct {
	name     string
	from, to *big.Rat
	arrow    bool
}

// checker has the events of a file that are checked with others.
type checker struct {
	errs      []error
	processes map[string]bool
	threads   map[lane]bool
	used      map[lane]bool
	slices    map[lane][]slice
	open      map[lane][]string
	// by id: the begin, or begin and end
	arrows map[string][]*big.Rat
}

// Check returns the faults of a file, which has none if these hold:
//   - ph, pid, tid and ts of each event are there and have their types, and times are not negative;
//   - each process and lane with events has one name;
//   - X events of a lane nest, and each B has its E;
//   - each arrow (s, f) has two ends that lie in slices, and does not go back in time;
//   - counters (C) are numbers, and moments (i) have a scope.
func Check(data []byte) (errs []error) {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	var events []map[string]any
	if err := d.Decode(&events); err != nil {
		return []error{err}
	}
	c := &checker{processes: map[string]bool{}, threads: map[lane]bool{}, used: map[lane]bool{}, slices: map[lane][]slice{},
		open: map[lane][]string{}, arrows: map[string][]*big.Rat{}}
	for i, e := range events {
		if err := c.event(e); err != nil {
			c.errs = append(c.errs, fmt.Errorf("event %d, %v: %w", i, e, err))
		}
	}
	c.ends()
	return c.errs
}

// number returns a numeric field of an event.
func number(e map[string]any, key string) (*big.Rat, error) {
	n, ok := e[key].(json.Number)
	if !ok {
		return nil, fmt.Errorf("%s is %v, and not a number", key, e[key])
	}
	r, ok := new(big.Rat).SetString(n.String())
	if !ok || r.Sign() < 0 {
		return nil, fmt.Errorf("%s is %v", key, n)
	}
	return r, nil
}

// event checks an event by itself, and keeps it for checks with others.
func (c *checker) event(e map[string]any) error {
	var at [3]*big.Rat
	for i, key := range []string{"pid", "tid", "ts"} {
		var err error
		if at[i], err = number(e, key); err != nil {
			return err
		}
	}
	l, ts := lane{at[0].RatString(), at[1].RatString()}, at[2]
	name, ok := e["name"].(string)
	if !ok && e["ph"] != "E" {
		return fmt.Errorf("it has no name")
	}
	args, _ := e["args"].(map[string]any)
	if e["ph"] == "M" {
		return c.metadata(name, l, args)
	}
	c.used[l] = true
	switch e["ph"] {
	case "X":
		dur, err := number(e, "dur")
		if err != nil {
			return err
		}
		c.slices[l] = append(c.slices[l], slice{name: name, from: ts, to: new(big.Rat).Add(ts, dur)})
	case "B":
		c.open[l] = append(c.open[l], name)
	case "E":
		if len(c.open[l]) == 0 {
			return fmt.Errorf("there is no B")
		}
		c.open[l] = c.open[l][:len(c.open[l])-1]
	case "s", "f":
		return c.arrow(e, l, ts)
	case "C":
		if len(args) == 0 {
			return fmt.Errorf("it has no values")
		}
		for key := range args {
			if _, err := number(args, key); err != nil {
				return err
			}
		}
	case "i":
		if s, _ := e["s"].(string); !slices.Contains([]string{"g", "p", "t"}, s) {
			return fmt.Errorf("its scope is %q", s)
		}
	default:
		return fmt.Errorf("ph is %v", e["ph"])
	}
	return nil
}

func (c *checker) metadata(name string, l lane, args map[string]any) error {
	switch name {
	case "process_name":
		if c.processes[l.pid] {
			return fmt.Errorf("the process has two names")
		}
		c.processes[l.pid] = true
	case "thread_name":
		if c.threads[l] {
			return fmt.Errorf("the lane has two names")
		}
		c.threads[l] = true
	default:
		return nil
	}
	if s, _ := args["name"].(string); s == "" {
		return fmt.Errorf("the name is empty")
	}
	return nil
}

// arrow checks one end of an arrow. The beginning must come before the end.
func (c *checker) arrow(e map[string]any, l lane, ts *big.Rat) error {
	if _, err := number(e, "id"); err != nil {
		return err
	}
	id := fmt.Sprint(e["cat"], " ", e["name"], " ", e["id"])
	ends := c.arrows[id]
	c.slices[l] = append(c.slices[l], slice{name: "an end of arrow " + id, from: ts, to: ts, arrow: true})
	c.arrows[id] = append(ends, ts)
	switch {
	case e["ph"] == "s" && len(ends) == 0:
		return nil
	case e["ph"] == "s" || len(ends) != 1:
		return fmt.Errorf("the arrow has other ends before: %v", ends)
	case e["bp"] != "e":
		return fmt.Errorf("it would end in the next slice")
	case ends[0].Cmp(ts) > 0:
		return fmt.Errorf("it began at %v", ends[0].FloatString(3))
	}
	return nil
}

// ends checks the events with each other.
func (c *checker) ends() {
	fail := func(format string, args ...any) { c.errs = append(c.errs, fmt.Errorf(format, args...)) }
	for l := range c.used {
		if !c.processes[l.pid] || !c.threads[l] {
			fail("%+v has no name", l)
		}
	}
	for l, names := range c.open {
		if len(names) > 0 {
			fail("%+v: %v have no E", l, names)
		}
	}
	for id, ends := range c.arrows {
		if len(ends) != 2 {
			fail("arrow %s has %d ends", id, len(ends))
		}
	}
	for l, all := range c.slices {
		c.nest(l, all)
	}
}

// nest checks that slices of a lane lie inside of each other or apart, and arrows inside of slices.
func (c *checker) nest(l lane, all []slice) {
	slices.SortStableFunc(all, func(a, b slice) int {
		switch order := a.from.Cmp(b.from); {
		case order != 0:
			return order
		case a.arrow != b.arrow: // an arrow may begin with its slice
			return map[bool]int{true: 1, false: -1}[a.arrow]
		}
		return b.to.Cmp(a.to)
	})
	var open []slice
	for _, s := range all {
		for len(open) > 0 && open[len(open)-1].to.Cmp(s.from) <= 0 {
			open = open[:len(open)-1]
		}
		switch {
		case s.arrow && len(open) == 0:
			c.errs = append(c.errs, fmt.Errorf("%+v: %s at %s is in no slice", l, s.name, s.from.FloatString(3)))
		case s.arrow:
		case len(open) > 0 && open[len(open)-1].to.Cmp(s.to) < 0:
			c.errs = append(c.errs, fmt.Errorf("%+v: %s sticks out of %s at %s", l, s.name, open[len(open)-1].name, s.from.FloatString(3)))
		default:
			open = append(open, s)
		}
	}
}
