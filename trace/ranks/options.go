package ranks

import (
	"fmt"
	"net/url"
	"strings"
)

// Options are those of [Read]. A limit of 0 means the default: 256 Mi, or 8 for each byte of the
// files if that is more.
type Options struct {
	MaxMemory int64 // bytes of memory for all files together
	MaxWork   int64 // units of about 20 ns

	// TraceURL is the address of a trace in a viewer, with {trace_id} in place of the id:
	// "http://localhost:16686/trace/{trace_id}" of Jaeger. "": steps have no links.
	TraceURL string
}

const traceIDPlace = "{trace_id}"

// traceAddress returns the address of a trace, or "" without a template.
func traceAddress(template, id string) string { return strings.ReplaceAll(template, traceIDPlace, id) }

// checkTraceURL returns an error about a template that makes no address of a page.
func (o *Options) checkTraceURL() error {
	if o.TraceURL == "" {
		return nil
	}
	u, err := url.Parse(traceAddress(o.TraceURL, strings.Repeat("0", 32)))
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || !strings.Contains(o.TraceURL, traceIDPlace) {
		return fmt.Errorf("ranks: %w: the address of traces %.200q: want http or https, a host and %s, as in http://localhost:16686/trace/%[3]s",
			ErrInvalid, o.TraceURL, traceIDPlace)
	}
	return nil
}
