package profiledir

import (
	"fmt"
	"strconv"
	"strings"
)

// StepSet is a set of step numbers as ranges, both ends included. It is a flag.Value.
type StepSet [][2]int64

// String returns the set as Set reads it, such as "17,100-110".
func (s StepSet) String() string {
	var list []string
	for _, r := range s {
		text := strconv.FormatInt(r[0], 10)
		if r[1] != r[0] {
			text += "-" + strconv.FormatInt(r[1], 10)
		}
		list = append(list, text)
	}
	return strings.Join(list, ",")
}

// Set replaces the set by the one in text, such as "17,100-110". Empty text is the empty set.
func (s *StepSet) Set(text string) error {
	*s = nil
	if strings.TrimSpace(text) == "" {
		return nil
	}
	for part := range strings.SplitSeq(text, ",") {
		first, last, isRange := strings.Cut(strings.TrimSpace(part), "-")
		if !isRange {
			last = first
		}
		lo, err1 := strconv.ParseInt(first, 10, 64)
		hi, err2 := strconv.ParseInt(last, 10, 64)
		if err1 != nil || err2 != nil || lo < 1 || hi < lo {
			return fmt.Errorf("%q: want step numbers from 1 on, and ranges of them, such as 17,100-110", part)
		}
		*s = append(*s, [2]int64{lo, hi})
	}
	return nil
}

// Has reports whether step n is in the set.
func (s StepSet) Has(n int64) bool {
	for _, r := range s {
		if r[0] <= n && n <= r[1] {
			return true
		}
	}
	return false
}
