package autograd_test

import (
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
)

// pyCall is a call of a Python class in the name of a case, such as "StepLR(step_size=5,
// gamma=0.5)".
type pyCall struct {
	t    testing.TB
	name string
	args map[string]string
	used map[string]bool
}

// parsePython reads a call. Arguments without a name have the names of positional, in that order.
func parsePython(t testing.TB, text string, positional map[string][]string) *pyCall {
	t.Helper()
	text = strings.TrimSpace(text)
	open := strings.Index(text, "(")
	require.True(t, open > 0 && strings.HasSuffix(text, ")"), "no call: %q", text)
	c := &pyCall{t: t, name: text[:open], args: map[string]string{}, used: map[string]bool{}}
	c.name = c.name[strings.LastIndex(c.name, ".")+1:]
	for i, arg := range splitPython(text[open+1 : len(text)-1]) {
		key, value, named := strings.Cut(arg, "=")
		if !named {
			require.Less(t, i, len(positional[c.name]), "%q has too many arguments", text)
			key, value = positional[c.name][i], arg
		}
		c.args[strings.TrimSpace(key)] = strings.TrimSpace(value)
	}
	return c
}

// splitPython splits at the commas outside of brackets.
func splitPython(text string) (parts []string) {
	depth, from := 0, 0
	for i, r := range text {
		switch {
		case strings.ContainsRune("([", r):
			depth++
		case strings.ContainsRune(")]", r):
			depth--
		case r == ',' && depth == 0:
			parts = append(parts, text[from:i])
			from = i + 1
		}
	}
	if last := strings.TrimSpace(text[from:]); last != "" {
		parts = append(parts, last)
	}
	return parts
}

// get returns the argument as it is written, or "" if it is missing or None.
func (c *pyCall) get(name string) string {
	c.used[name] = true
	if c.args[name] == "None" {
		return ""
	}
	return c.args[name]
}

func (c *pyCall) float(name string) *float64 {
	c.t.Helper()
	text := c.get(name)
	if text == "" {
		return nil
	}
	v, err := strconv.ParseFloat(text, 64)
	require.NoError(c.t, err, "%s of %s", name, c.name)
	return &v
}

func (c *pyCall) floatOr(name string, standard float64) float64 {
	c.t.Helper()
	return tapetest.ValueOr(c.float(name), standard)
}

func (c *pyCall) int(name string) *int {
	c.t.Helper()
	v := c.float(name)
	if v == nil {
		return nil
	}
	return new(int(*v))
}

func (c *pyCall) intOr(name string, standard int) int {
	c.t.Helper()
	if v := c.int(name); v != nil {
		return *v
	}
	return standard
}

func (c *pyCall) bool(name string, standard bool) bool {
	c.t.Helper()
	switch c.get(name) {
	case "":
		return standard
	case "True", "1":
		return true
	case "False", "0":
		return false
	}
	require.FailNow(c.t, "no boolean", "%s of %s is %q", name, c.name, c.args[name])
	return false
}

// floats is a list or a tuple.
func (c *pyCall) floats(name string) (all []float64) {
	c.t.Helper()
	for _, part := range splitPython(strings.Trim(c.get(name), "[]()")) {
		v, err := strconv.ParseFloat(strings.TrimSpace(part), 64)
		require.NoError(c.t, err, "%s of %s", name, c.name)
		all = append(all, v)
	}
	return all
}

// done requires that every argument was read, except those that choose an implementation.
func (c *pyCall) done() {
	c.t.Helper()
	for _, name := range []string{"foreach", "fused", "capturable", "differentiable", "last_epoch", "verbose", "params", "optimizer"} {
		c.used[name] = true
	}
	for name := range c.args {
		require.True(c.t, c.used[name], "%s has no argument %q", c.name, name)
	}
}
