import java.io.BufferedReader;
import java.io.InputStreamReader;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.hdfs.DistributedFileSystem;
import org.apache.hadoop.hdfs.MiniDFSCluster;
import org.apache.hadoop.hdfs.protocol.HdfsConstants;

/**
 * A name node of HDFS and a data node in one process, with WebHDFS on a given port. What happens to
 * a cluster is read as lines.
 */
public class Hdfs {
  public static void main(String[] arguments) throws Exception {
    Configuration conf = new Configuration();
    conf.set(MiniDFSCluster.HDFS_MINIDFS_BASEDIR, arguments[1]);
    MiniDFSCluster cluster =
        new MiniDFSCluster.Builder(conf)
            .nameNodeHttpPort(Integer.parseInt(arguments[0]))
            .numDataNodes(1)
            .build();
    cluster.waitActive();
    DistributedFileSystem files = cluster.getFileSystem();
    MiniDFSCluster.DataNodeProperties away = null;
    BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
    for (String line = lines.readLine(); line != null; line = lines.readLine()) {
      String[] words = line.split(" ");
      switch (words[0]) {
        case "safe_mode":
          files.setSafeMode(HdfsConstants.SafeModeAction.valueOf("SAFEMODE_" + words[1]));
          break;
        case "quota": // of a folder, in bytes
          files.setQuota(
              new Path(words[1]), HdfsConstants.QUOTA_DONT_SET, Long.parseLong(words[2]));
          break;
        case "stop_data_node":
          away = cluster.stopDataNode(0);
          break;
        case "start_data_node":
          cluster.restartDataNode(away, true);
          cluster.waitActive();
          break;
        default:
          throw new IllegalArgumentException(line);
      }
      System.out.println("done " + line);
    }
    Thread.currentThread().join();
  }
}
