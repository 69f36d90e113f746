import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.hdfs.MiniDFSCluster;

/** A name node of HDFS and a data node in one process, with WebHDFS on a given port. */
public class Hdfs {
  public static void main(String[] arguments) throws Exception {
    Configuration conf = new Configuration();
    conf.set(MiniDFSCluster.HDFS_MINIDFS_BASEDIR, arguments[1]);
    conf.setBoolean("dfs.permissions.enabled", false);
    new MiniDFSCluster.Builder(conf)
        .nameNodeHttpPort(Integer.parseInt(arguments[0]))
        .numDataNodes(1)
        .build()
        .waitActive();
    Thread.currentThread().join();
  }
}
