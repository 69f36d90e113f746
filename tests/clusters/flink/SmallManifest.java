import java.util.Collection;
import org.apache.flink.contrib.streaming.state.RocksDBOptionsFactory;
import org.rocksdb.ColumnFamilyOptions;
import org.rocksdb.DBOptions;

/**
 * RocksDB with a manifest that is begun anew at 64 kB, not at 1 GB: it is in every checkpoint whole,
 * and gets a few hundred bytes longer for each state that a checkpoint flushes.
 */
public class SmallManifest implements RocksDBOptionsFactory {
  @Override
  public DBOptions createDBOptions(DBOptions options, Collection<AutoCloseable> toClose) {
    return options.setMaxManifestFileSize(1 << 16);
  }

  @Override
  public ColumnFamilyOptions createColumnOptions(
      ColumnFamilyOptions options, Collection<AutoCloseable> toClose) {
    return options;
  }
}
