package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
)

// shown is how many lines before the first difference are shown.
const shown = 12

// compare runs both players and compares their lines, of which each begins a call if it begins with a letter. It returns how many
// calls there were, and as an error the first difference.
func compare(before, now *exec.Cmd) (calls int64, err error) {
	var outs [2]*bufio.Scanner
	for i, p := range [2]*exec.Cmd{before, now} {
		out, failed := p.StdoutPipe()
		if failed != nil {
			return 0, failed
		}
		p.Stderr = os.Stderr
		outs[i] = lines(out)
		if failed = p.Start(); failed != nil {
			return 0, failed
		}
		defer func() {
			if err != nil {
				_ = p.Process.Kill() // it would wait for who reads
			}
			if e := p.Wait(); err == nil && e != nil {
				err = fmt.Errorf("%s: %w", p, e)
			}
		}()
	}
	calls, err = difference(outs[0], outs[1])
	if err == nil {
		err = errors.Join(outs[0].Err(), outs[1].Err())
	}
	if err == nil && calls == 0 {
		err = errors.New("no call was made")
	}
	return calls, err
}

func lines(r io.Reader) *bufio.Scanner {
	s := bufio.NewScanner(r)
	s.Buffer(make([]byte, 1<<20), 64<<20)
	return s
}

// difference reads both to the end or to the first line that differs. The last line of each must be that of the end, as one that
// died says the same as the other up to there.
func difference(before, now *bufio.Scanner) (calls int64, err error) {
	var past []string
	for n := int64(1); ; n++ {
		more, also := before.Scan(), now.Scan()
		if !more && !also {
			if len(past) == 0 || past[len(past)-1] != "the end" {
				return calls, errors.New("the players ended before their calls")
			}
			return calls, nil
		}
		a, b := before.Bytes(), now.Bytes()
		if more != also || !bytes.Equal(a, b) {
			return calls, fmt.Errorf("line %d, call %d:\n  %s\nbefore: %s\nnow:    %s", n, calls, strings.Join(past, "\n  "), orEnd(a, more), orEnd(b, also))
		}
		if len(a) > 0 && a[0] != ' ' {
			calls++
		}
		if past = append(past, string(a)); len(past) > shown {
			past = past[1:]
		}
	}
}

func orEnd(line []byte, more bool) string {
	if !more {
		return "(nothing)"
	}
	return string(line)
}
