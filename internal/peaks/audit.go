package peaks

import "fmt"

// Audit returns an error that names the broken rule, if one of the package's rules does not hold.
// All shards are locked.
func (l *Ledger) Audit() error {
	for i, peak := range l.peaks {
		if err := l.audit(i, peak, func(s *Shard) int64 { return s.gauges[i].quota }); err != nil {
			return err
		}
		if limit := max(l.limits[i], 0); peak > limit {
			return fmt.Errorf("gauge %d: the peak is %d, the limit %d", i, peak, limit)
		}
		for k, w := range l.windows {
			if err := l.audit(i, w.peaks[i], func(s *Shard) int64 { return s.quotas[k][i] }); err != nil {
				return fmt.Errorf("window %d: %w", k, err)
			}
		}
	}
	return nil
}

func (l *Ledger) audit(gauge int, peak int64, quota func(*Shard) int64) error {
	sum := int64(0)
	for i, s := range *l.shards.Load() {
		if used := s.gauges[gauge].used; used > quota(s) {
			return fmt.Errorf("gauge %d: shard %d uses %d, its quota is %d", gauge, i, used, quota(s))
		}
		sum += quota(s)
	}
	if sum != peak {
		return fmt.Errorf("gauge %d: the quotas are %d, the peak is %d", gauge, sum, peak)
	}
	return nil
}
